// Native form elements, so that keyboard, focus and names work as everywhere on the web.

function element(tag, fields = {}) {
  const made = Object.assign(document.createElement(tag), fields);
  made.dataset.lmSuppressShortcuts = "true"; // in JupyterLab, keys pressed here are meant for here
  return made;
}

function slider(model, name) {
  const last = model.get("options").length - 1;
  const input = element("input", { type: "range", min: 0, max: last, step: 1 });
  const spoken = element("span");
  const show = () => {
    input.value = model.get("index");
    spoken.textContent = model.get("options")[model.get("index")];
    input.setAttribute("aria-valuetext", spoken.textContent);
  };
  // while it is dragged only the words follow; the kernel hears of it when it is let go
  input.addEventListener("input", () => {
    spoken.textContent = model.get("options")[input.value];
  });
  let waiting = null;
  const patience = model.get("kind") === "player" ? 0 : 200; // ms; keys held down are one move
  input.addEventListener("change", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => choose(model, Number(input.value)), patience);
  });
  input.setAttribute("aria-label", name);
  return [[input, spoken], show];
}

function list(model, name) {
  const select = element("select");
  model.get("options").forEach((words) => select.append(element("option", { textContent: words })));
  select.setAttribute("aria-label", name);
  select.addEventListener("change", () => choose(model, select.selectedIndex));
  return [[select], () => { select.selectedIndex = model.get("index"); }];
}

function player(model) {
  const last = model.get("options").length - 1;
  const back = element("button", { textContent: "Back" });
  const forward = element("button", { textContent: "Step" });
  const play = element("button", { textContent: "Play" });
  let timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const move = (steps) => choose(model, Math.min(Math.max(model.get("index") + steps, 0), last));
  back.addEventListener("click", () => { stop(); move(-1); });
  forward.addEventListener("click", () => { stop(); move(1); });
  play.addEventListener("click", () => {
    if (timer) return stop();
    if (model.get("index") === last) choose(model, 0);
    play.textContent = "Pause";
    timer = setInterval(() => (model.get("index") < last ? move(1) : stop()), 1000);
  });
  return [[back, forward, play], stop];
}

function choose(model, index) {
  model.set("index", index);
  model.save_changes();
}

function render({ model, el }) {
  const kind = model.get("kind");
  const label = element("span", { textContent: `${model.get("label")}: ` });
  const [parts, show] = (kind === "list" ? list : slider)(model, model.get("label"));
  const [buttons, stop] = kind === "player" ? player(model) : [[], () => {}];
  el.classList.add("casestudy-control");
  el.append(label, ...parts, ...buttons);
  model.on("change:index", show);
  show();
  return () => {
    model.off("change:index", show);
    stop();
  };
}

export default { render };
