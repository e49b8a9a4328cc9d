# One image for nodes, servers and simulations; compose.yaml runs a federation of it.
#   docker build --tag fedoptax .       (with --build-arg EXTRAS=flower,cuda for NVIDIA GPUs)
#   docker run --rm fedoptax run --task digits --algorithm fedadam --rounds 20 --out runs/a
FROM python:3.12-slim AS build
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /src
COPY pyproject.toml requirements.lock README.md LICENSE ./
COPY src src
ARG EXTRAS=flower,privacy
# Constraints take the versions and the hashes of the lock file, without the tools of development that it holds too. It
# does not hold the packages of the extra cuda.
RUN python -m venv /opt/fedoptax \
    && uv pip install --no-cache --compile-bytecode --python /opt/fedoptax/bin/python \
       --constraints requirements.lock ".[${EXTRAS}]"

FROM python:3.12-slim
COPY --from=build /opt/fedoptax /opt/fedoptax
ENV PATH=/opt/fedoptax/bin:$PATH PYTHONUNBUFFERED=1 FLWR_TELEMETRY_ENABLED=0
RUN useradd --create-home --uid 10001 fedoptax \
    && install --directory --owner=fedoptax --mode=700 /srv/fedoptax /srv/fedoptax/federation /srv/fedoptax/runs /srv/fedoptax/state
USER 10001
WORKDIR /srv/fedoptax
ENTRYPOINT ["fedoptax"]
CMD ["--help"]
