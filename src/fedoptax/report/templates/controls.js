// What the reader chooses: metric, axes, smoothing, spread, and which algorithms.

function segmented(title, options, chosen, change) {
  const name = title.toLowerCase().replace(/[^a-z]/g, "-");
  return html("fieldset", {}, html("legend", {}, title), ...options.map(([value, text]) =>
    html("label", {},
      html("input", { type: "radio", name, value, checked: value === chosen, onchange: () => change(value) }),
      html("span", {}, text))));
}

function selection(title, options, chosen, change) {
  return html("label", { class: "choice" }, title, html("select", { onchange: (event) => change(event.target.value) },
    ...options.map(([value, text]) => html("option", { value, selected: value === chosen }, text))));
}

function checkbox(text, chosen, change) {
  return html("label", { class: "check" },
    html("input", { type: "checkbox", checked: chosen, onchange: (event) => change(event.target.checked) }), text);
}

// Windows of an odd number of points, up to about a quarter of the longest curve.
function smoothingSlider(change) {
  const longest = Math.max(1, ...DATA.groups.flatMap((g) => Object.values(g.curves).map((c) => c.rounds.length)));
  const windows = [1, 3, 5, 9, 15, 25, 45, 75, 125, 251, 501].filter((window) => window === 1 || window <= longest / 4);
  const words = (window) => (window === 1 ? "off" : `${window} points`);
  const output = html("output", {}, words(1));
  const slider = html("input", {
    type: "range", min: 0, max: windows.length - 1, step: 1, value: 0, "aria-label": "Smoothing", "aria-valuetext": words(1),
    oninput: (event) => {
      const window = windows[Number(event.target.value)];
      output.textContent = words(window);
      event.target.setAttribute("aria-valuetext", words(window));
      change(window);
    },
  });
  return windows.length > 1 ? [html("label", { class: "slider" }, "Smoothing", slider, output)] : [];
}

function buildControls(holder) {
  const set = (name) => (value) => {
    state[name] = value;
    clearReading();
    draw();
  };
  const metrics = DATA.metrics.map((metric) => [metric.name, metric.label]);
  const letters = metrics.reduce((sum, [, label]) => sum + label.length, 0);
  const choose = metrics.length <= 4 && letters <= 60 ? segmented : selection;
  const several = DATA.groups.some((group) => group.seeds.length > 1);
  holder.append(
    choose("Metric", metrics, state.metric, set("metric")),
    segmented("Horizontal axis", [["rounds", "Rounds"], ["megabytes", "MB sent"]], state.x, set("x")),
    checkbox("Log scale", state.log, set("log")),
    checkbox("Zoom", state.zoom, set("zoom")),
    ...(several ? [checkbox("Spread", state.band, set("band")), checkbox("Seeds", state.seeds, set("seeds"))] : []),
    ...smoothingSlider(set("window")));
}

function buildLegend(list, showAll) {
  const buttons = DATA.groups.map((group, place) => html("button", {
    type: "button", "aria-pressed": "true", title: group.label,
    onclick: () => toggle(place),
    ondblclick: () => only(place),
    onpointerenter: () => light(place),
    onpointerleave: () => light(null),
  }, html("span", { class: "swatch" }, swatch(group)), html("span", { class: "text" }, group.label), html("span", { class: "last" })));
  list.append(...buttons.map((button) => html("li", {}, button)));
  showAll.addEventListener("click", () => show(new Set()));

  function show(hidden) {
    state.hidden = hidden;
    buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(!hidden.has(place))));
    showAll.hidden = hidden.size === 0;
    clearReading();
    draw();
  }
  function toggle(place) {
    const hidden = new Set(state.hidden);
    if (!hidden.delete(place)) hidden.add(place);
    show(hidden);
  }
  function only(place) {
    show(new Set(DATA.groups.map((_, other) => other).filter((other) => other !== place)));
  }
}

function light(place) {
  state.lit = place !== null && state.hidden.has(place) ? null : place;
  if (!view) return;
  view.picture.classList.toggle("dimmed", state.lit !== null);
  const curves = view.picture.querySelectorAll(".curve");
  view.series.forEach((item, i) => curves[i].classList.toggle("lit", item.place === state.lit));
}
