// Puts the parts together.

const server = new Server();
const figures = new Figures($("figures"));
const timeline = new Timeline($("timeline"), $("bars"), $("tip"), server);
const past = new Past($("past"));
const gpus = new Gpus($("gpus"));
const residency = new Residency($("residency"));
const tryDialog = new TryDialog();
const models = new Models($("models"), { try: tryModel, change: changeModel });
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

let allowsControl = false;
let isPaused = false;
let lostEvents = 0;

const notice = (text) => setText($("notice"), text);

function showConnection(state, text) {
  const pill = $("connection");
  pill.dataset.state = state;
  setText(pill, text);
}

const stream = new Stream({
  event(name, data) {
    if (name === "hello") {
      server.restart();
      timeline.offset = undefined;
      allowsControl = data.model_control;
      showConnection("live", "live");
      readIndex();
      readServer();
    } else if (name === "lost") {
      lostEvents += data.events;
      showConnection("live", `live, ${lostEvents} updates lost`);
    } else if (name === "history") {
      server.history.replace(data);
      past.update(server.history);
      residency.update(server.history);
    } else if (name === "sample") {
      server.history.append(data);
      if (!isPaused) {
        past.update(server.history);
        residency.update(server.history);
      }
    } else if (name === "frame") {
      const hasChanged = server.add(data);
      timeline.sync(data.at_us);
      if (hasChanged) readIndex();
      if (!isPaused) render();
    }
  },
  async state(state, text, header) {
    showConnection(state === "refused" ? "refused" : "waiting", text);
    if (header && (await askKey(header))) stream.start();
  },
});

function render() {
  figures.update(server);
  gpus.update(server.gpus);
  models.update(server, allowsControl);
  legend();
  $("bars").setAttribute("aria-label", timeline.describe());
  if (server.omitted) notice(`${server.omitted} further versions are not shown`);
  if (isStill.matches) timeline.draw();
}

function legend() {
  const seen = new Set();
  for (const version of server.versions.values()) {
    for (const [reason, count] of version.frame.closed) if (count > 0) seen.add(reason);
  }
  const list = $("legend");
  const shown = [...seen].sort().join(" ");
  if (list.dataset.shown === shown) return;
  list.dataset.shown = shown;
  const entries = server.reasons.filter((reason) => seen.has(reason)).map((reason) => {
    const swatch = make("i", { className: "swatch" });
    swatch.style.background = reasonColor(reason);
    return make("li", { title: REASONS[reason]?.[1] ?? "" }, swatch, reason);
  });
  list.replaceChildren(...entries);
}

let isReadingIndex = false;

/** Reads which models there are. A restricted index leaves the ready models. */
async function readIndex() {
  if (isReadingIndex) return;
  isReadingIndex = true;
  try {
    server.index = (await call("POST", "/v2/repository/index", {})) ?? [];
    models.update(server, allowsControl);
  } catch {
    server.index = [];
  }
  isReadingIndex = false;
}

async function readServer() {
  try {
    const { name, version } = await call("GET", "/v2");
    setText($("server"), `${name} · ${version}`);
    document.title = `${name} · Galatea`;
  } catch {
    // Restricted, or gone: the title stays.
  }
}

async function tryModel(row) {
  try {
    await tryDialog.open(row);
  } catch (error) {
    notice(error.message);
  }
}

async function changeModel({ name, version }) {
  const verb = version ? "unload" : "load";
  if (version && !(await confirmed(`Unload ${name}?`, "Its queued requests are executed. New ones are refused.", "Unload"))) return;
  notice(`${verb}ing ${name} …`);
  const polling = setInterval(readIndex, 700);
  try {
    await callWithKey("POST", `/v2/repository/models/${name}/${verb}`, {});
    notice(`${name} is ${verb}ed`);
  } catch (error) {
    notice(`${name} was not ${verb}ed: ${error.message}`);
  }
  clearInterval(polling);
  await readIndex();
  setTimeout(readIndex, 1200);
  models.focus(name);
}

function setPaused(paused) {
  isPaused = paused;
  timeline.pause(paused);
  $("pause").setAttribute("aria-pressed", String(paused));
  setText($("pause"), paused ? "Continue" : "Pause");
}

$("pause").addEventListener("click", () => setPaused(!isPaused));
$("window").addEventListener("change", (event) => {
  timeline.window = 1e6 * Number(event.target.value);
  timeline.draw();
});
$("filter").addEventListener("input", (event) => {
  timeline.filter = event.target.value;
  timeline.draw();
});
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, dialog");
  if (event.key === "p" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) setPaused(!isPaused);
});

let lastDraw = 0;

/** Thirty times a second is smooth, and half the work of sixty. */
function animate(now) {
  if (now - lastDraw > 30 && !isStill.matches) {
    lastDraw = now;
    timeline.draw();
    timeline.show();
  }
  requestAnimationFrame(animate);
}
requestAnimationFrame(animate);
addEventListener("resize", () => timeline.draw());
setInterval(() => document.visibilityState === "visible" && stream.isWanted && readIndex(), 5000);

// A page that is not seen lets the server record nothing.
let hiding;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiding);
  if (document.visibilityState === "visible") stream.start();
  else hiding = setTimeout(() => stream.stop(), 5000);
});
// A browser may keep a page that was left, with its connections, to go back to it.
addEventListener("pagehide", () => stream.stop());
addEventListener("pageshow", (event) => event.persisted && stream.start());
stream.start();
