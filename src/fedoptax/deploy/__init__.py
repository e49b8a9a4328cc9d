"""The same algorithms on a real network: Flower carries the messages, fedoptax supplies server and client.

What knows nothing of Flower: `wire` (trees to named arrays and back, trusting nothing), `config`, `rounds` (a round
with quorum and deadlines), `server` (from replies to the next state), `client` and `memory` (a client's work and what
it keeps), `run` (a run's folder). What does: `flower_records`, `flower_server`, `flower_client`, `strategy`. Around
them: `keys`, `app_folder`, `processes`, `local`, `commands`. Nothing outside this package imports it, or Flower.
"""
