// The page: sliders -> a position -> the map, the numbers, the commands, the table, the link.

const page = JSON.parse(document.getElementById("plans-data").textContent);
const CARDS = "parallel.tensor_parallel_size", CACHE = "cache.cache_dtype";
const BATCH = "scheduler.max_num_batched_tokens", LENGTH = "scheduler.max_model_len";
const byId = (id) => document.getElementById(id);
const state = { subject: 0, stops: [], length: 0, users: page.users, sort: "users", down: true };
let known = null; // of a served page: what was planned so far, by key

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const subject = () => page.subjects[state.subject];
const stopOf = (key, stops = state.stops, of = subject()) => {
  const i = of.axes.findIndex((axis) => axis.key === key);
  return of.axes[i].stops[stops[i]];
};
const lengthAxis = (of = subject()) => of.axes[of.axes.length - 1]; // the last one, always
const valueOf = (axis, stop) => (axis.key === LENGTH ? state.length : axis.stops[stop]);
const valuesNow = () => subject().axes.map((axis, i) => valueOf(axis, state.stops[i]));
const userStops = (() => {
  const stops = [];
  for (let n = 1; n <= 4096; n = n < 16 ? n + 1 : Math.ceil(n * 1.15)) stops.push(n);
  return stops;
})();

// --- where a position comes from: the grid of this file, or the server that served it
async function position() {
  if (!known) return positionAt(subject(), state.stops, state.length);
  const key = keyOf(state.stops, state.length);
  if (!known.has(key)) known.set(key, await window.kvpipeServer.plan(changesNow()));
  return known.get(key);
}
const keyOf = (stops, length) => JSON.stringify([...stops.slice(0, -1), length]);
const changesNow = () => {
  const values = valuesNow();
  return Object.fromEntries(subject().axes.map((axis, i) => [axis.key, values[i]]));
};

// --- the length: any that a plan says something of; the next stop where none does
function setLength(asked) {
  const stops = lengthAxis().stops, longest = stops[stops.length - 1];
  const length = Math.min(longest, Math.max(known ? 1 : stops[0], Math.floor(asked) || 1));
  const next = stops.findIndex((stop) => stop >= length);
  state.stops[state.stops.length - 1] = next;
  const here = known || positionAt(subject(), state.stops, length);
  state.length = here ? length : stops[next];
  byId("snapped").textContent = here ? "" : `No plan here says anything of ${counted(length, "token")}: ` +
    "its groups, or its verdict, are known at the slider's stops. The next one is shown.";
}

// What the slider passes: the stops, and where lengths between them are known seven more.
const PARTS = 8;
const isFree = () => !known && (subject().between || []).some((pieces) => pieces.length);
function lengthAt(mark) {
  const stops = lengthAxis().stops;
  if (!isFree()) return stops[mark];
  const i = Math.floor(mark / PARTS), above = stops[Math.min(i + 1, stops.length - 1)];
  return stops[i] + Math.round(((above - stops[i]) * (mark % PARTS)) / PARTS);
}
function markOf(length) {
  const stops = lengthAxis().stops, at = stops.findLastIndex((stop) => stop <= length);
  if (!isFree()) return Math.max(0, stops.findIndex((stop) => stop >= length));
  if (at === stops.length - 1) return at * PARTS;
  return at * PARTS + Math.floor(((length - stops[at]) * PARTS) / (stops[at + 1] - stops[at]));
}

// --- the controls
function drawControls() {
  const form = byId("controls");
  form.replaceChildren();
  if (page.subjects.length > 1) form.append(chooser());
  form.append(usersControl());
  [LENGTH, BATCH, CACHE, CARDS].forEach((key) => form.append(slider(key)));
}

function chooser() {
  const select = element("select", { id: "subject" });
  page.subjects.forEach((each, i) => select.append(element("option", { value: i }, each.title)));
  select.value = state.subject;
  select.addEventListener("change", () => choose(Number(select.value)));
  const name = { comparison: "Engine", fleet: "Fleet" }[page.kind] || "Job of the sweep";
  return element("div", { class: "control choice" }, element("label", { for: "subject" }, name), select);
}

function choose(number, stops) {
  const before = stops || valuesNow();
  state.subject = number;
  state.stops = subject().axes.map((axis, i) => {
    const at = axis.stops.indexOf(before[i]);
    return at < 0 ? axis.start : at;
  });
  setLength(before[before.length - 1]);
  drawControls();
  show();
}

function usersControl() {
  const range = element("input", { type: "range", id: "users", min: 0, max: userStops.length - 1 });
  const number = element("input", { type: "number", id: "users-exact", min: 1, max: 1000000, "aria-label": "Users, exactly" });
  range.addEventListener("input", () => setUsers(userStops[Number(range.value)]));
  number.addEventListener("change", () => setUsers(Number(number.value)));
  return element("div", { class: "control" }, element("label", { for: "users" }, "Users at once"), number, range);
}

function setUsers(users) {
  state.users = Math.min(1000000, Math.max(1, Math.floor(users) || 1));
  show();
}

function slider(key) {
  const i = subject().axes.findIndex((axis) => axis.key === key);
  const axis = subject().axes[i];
  const title = axis.title[0].toUpperCase() + axis.title.slice(1);
  if (axis.stops.length === 1) {
    return element("p", { class: "only" }, `${title}: `, element("b", {}, shownStop(key, axis.stops[0])));
  }
  const marks = key === LENGTH && isFree() ? PARTS : 1;
  const range = element("input", { type: "range", id: `axis-${i}`, min: 0, max: (axis.stops.length - 1) * marks, "data-key": key });
  range.addEventListener("input", () => { moveTo(i, Number(range.value)); show(); });
  const shown = key === LENGTH && (known || isFree()) ? exactLength()
    : element("output", { for: range.id, "data-of": range.id });
  return element("div", { class: "control" }, element("label", { for: range.id }, title), shown, range);
}

function moveTo(i, mark) {
  if (subject().axes[i].key === LENGTH) return setLength(lengthAt(mark));
  state.stops[i] = mark;
  return setLength(state.length);
}

function exactLength() {
  const stops = lengthAxis().stops;
  const number = element("input", { type: "number", id: "length-exact", min: known ? 1 : stops[0],
    max: stops[stops.length - 1], "aria-label": "Length in tokens, exactly" });
  number.addEventListener("change", () => { setLength(Number(number.value)); show(); });
  return number;
}

function shownStop(key, stop) {
  if (key === BATCH && stop === "auto") return "each engine's own (auto)";
  if (key === LENGTH || key === BATCH) return `${grouped(stop)} tokens`;
  if (key === CARDS) return shownCards(subject(), stop);
  return stop === "auto" ? "as the model (auto)" : String(stop);
}

// A stop is ranks of tensor parallelism: of each stage, of each copy.
const cardsAt = (each, stop) => stop * each.pipeline * each.copies;

function shownCards(each, stop) {
  const kinds = [["TP", stop], ["PP", each.pipeline], ["DP", each.copies]].filter(([, n]) => n > 1);
  const how = kinds.length === 1 && stop > 1 ? "tensor parallel" : kinds.map((kind) => kind.join(" ")).join(" ");
  return counted(cardsAt(each, stop), "card") + (how ? ` (${how})` : "");
}

function showControls() {
  const users = byId("users");
  const nearest = userStops.findIndex((n) => n >= state.users);
  users.value = nearest < 0 ? userStops.length - 1 : nearest;
  users.setAttribute("aria-valuetext", counted(state.users, "user"));
  byId("users-exact").value = state.users;
  subject().axes.forEach((axis, i) => {
    const range = byId(`axis-${i}`);
    if (!range) return;
    const words = shownStop(axis.key, valueOf(axis, state.stops[i]));
    range.value = axis.key === LENGTH ? markOf(state.length) : state.stops[i];
    range.setAttribute("aria-valuetext", words);
    const shown = document.querySelector(`output[data-of="${range.id}"]`);
    if (shown) shown.textContent = words;
    else byId("length-exact").value = state.length;
  });
}

// --- what is shown
let asked = 0;
async function show() {
  const mine = ++asked;
  showControls();
  byId("model").textContent = `${subject().model} on ${subject().device}` + (subject().title ? `, ${subject().title}` : "");
  const found = await position();
  if (mine !== asked) return; // a later change was faster
  showVerdict(found);
  showMap(found);
  showCommands(found);
  showTable();
  history.replaceState(null, "", `#${stateText()}`);
}

function showVerdict(found) {
  const told = verdict(found, state.users, state.length, subject().device);
  byId("verdict").className = told.status;
  byId("verdict").textContent = told.says;
  byId("about").textContent = found.card_bytes && found.users ? aboutUsers(found) : "";
}

const running = (users) => `${counted(users, "user")} ${users === 1 ? "runs" : "run"}`;
function aboutUsers(found) {
  const limit = found.memory_users > found.users ? ` (memory would hold ${grouped(found.memory_users)})` : "";
  const range = found.low_bytes < found.high_bytes
    ? `, estimated ${size(found.low_bytes)} to ${size(found.high_bytes)}` : "";
  const where = found.copies > 1 ? ` on ${found.copies} copies` : "";
  const atWorst = found.low_users < found.users
    ? ` With the least memory of the estimate ${found.low_users ? running(found.low_users) : "no user runs"}.` : "";
  return `${running(found.users)} at once${where}${limit}: ${grouped(found.peak_users)} all reading their ` +
    `prompts, ${grouped(found.steady_users)} all decoding. A request holds ${size(found.request_bytes)}; ` +
    `the cache has ${size(found.cache_bytes)} on each card${range}.${atWorst}`;
}

function usersACard(row) { return row.at.users / row.cards; }

function showMap(found) {
  const map = byId("map"), legend = byId("legend");
  map.replaceChildren();
  legend.replaceChildren();
  if (!found.card_bytes) { byId("scale").textContent = "There is no plan to draw."; return; }
  const drawn = segments(found, state.users, page.causes);
  const total = drawn.reduce((sum, [, bytes]) => sum + bytes, 0);
  const words = [];
  for (const [cause, bytes] of drawn) {
    const name = cause < 0 ? "too much" : page.causes[cause].name.replaceAll("_", " ");
    const kind = cause < 0 ? "c-overflow" : `c-${page.causes[cause].name}`;
    const part = element("span", { class: kind, "data-cause": name, "data-bytes": bytes,
      title: `${name}: ${size(bytes)} (${grouped(bytes)} bytes)` });
    part.style.flex = `${bytes / total} 0 0`;
    const room = map.clientWidth * (bytes / total) - 12;
    if (room > 7 * Math.max(name.length, size(bytes).length)) part.append(element("b", {}, name), element("i", {}, size(bytes)));
    map.append(part);
    words.push(`${name} ${size(bytes)}`);
    const means = cause < 0 ? "more than there is" : page.causes[cause].means;
    legend.append(element("li", { title: means }, element("span", { class: `dot ${kind}` }),
      element("span", {}, name), element("span", { class: "num" }, size(bytes))));
  }
  map.setAttribute("aria-label", `Memory map of one card: ${words.join(", ")}`);
  const over = drawn.find(([cause]) => cause < 0);
  byId("scale").textContent = `One card of ${size(found.card_bytes)}` + (over ? `, and ${size(over[1])} too much` : "");
}

const counted = (number, noun) => `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
const quoted = (word) => (/^[A-Za-z0-9_.,:=\/@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

// A line that wraps between its words alone; as text it is the line itself.
const unbroken = (line) =>
  line.split(" ").flatMap((word, i) => [...(i ? [" "] : []), element("span", { class: "word" }, word)]);

function showCommands(found) {
  const values = valuesNow(), axes = subject().axes.map((axis, i) => `${axis.key}=${values[i]}`);
  const words = ["kvpipe", "run", ...subject().words, ...axes, `want.requests=${state.users}`];
  byId("ask").replaceChildren(...unbroken(words.map(quoted).join(" ")));
  const [serve, why] = [found.serve, found.no_serve].map(written);
  byId("serve").replaceChildren(...unbroken(serve));
  byId("serving").hidden = !serve;
  byId("no-serve").textContent = serve ? "" : `No engine's command: ${why || "nothing was planned that an engine could start with"}.`;
  byId("no-serve").hidden = Boolean(serve);
}
const written = (words) => (Array.isArray(words) ? words.map((i) => page.words[i]).join(" ") : words)
  .replace("{length}", String(state.length));

// --- the table
const columns = [
  { key: "title", title: "Plan", of: (row) => row.title },
  { key: "cards", title: "Cards", num: true, of: (row) => row.cards },
  { key: "cache", title: "Cache", of: (row) => String(row.stop(CACHE)) },
  { key: "batch", title: "Batch", num: true, of: (row) => row.stop(BATCH), text: (row) => grouped(row.stop(BATCH)) },
  { key: "users", title: "Users", num: true, of: (row) => row.at.users, text: (row) => grouped(row.at.users) },
  { key: "per_card", title: "Users a card", num: true, of: usersACard, text: (row) => usersACard(row).toFixed(1) },
  { key: "request", title: "A request", num: true, of: (row) => row.at.request_bytes, text: (row) => size(row.at.request_bytes) },
  { key: "pool", title: "Cache memory", num: true, of: (row) => row.at.cache_bytes, text: (row) => size(row.at.cache_bytes) },
  { key: "verdict", title: "Verdict", of: (row) => row.told.says },
];

function rowsShown() {
  const rows = [];
  page.subjects.forEach((each, number) => {
    const l = each.axes.findIndex((axis) => axis.key === LENGTH);
    const length = Math.max(0, each.axes[l].stops.findIndex((stop) => stop >= state.length));
    for (const stops of combinationsOf(each.axes, l, length)) {
      const at = known ? known.get(keyOf(stops, state.length)) : positionAt(each, stops, state.length);
      if (!at) continue;
      const stop = (key) => stopOf(key, stops, each);
      const told = verdict(at, state.users, state.length, each.device);
      rows.push({ number, stops, at, stop, told, cards: cardsAt(each, stop(CARDS)), title: each.title || "show" });
    }
  });
  const column = columns.find((each) => each.key === state.sort);
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  return rows.sort((a, b) => (state.down ? -1 : 1) * order(column.of(a), column.of(b)));
}

function* combinationsOf(axes, fixed, at, i = 0, stops = []) {
  if (i === axes.length) { yield stops; return; }
  const choices = i === fixed ? [at] : axes[i].stops.keys();
  for (const stop of choices) yield* combinationsOf(axes, fixed, at, i + 1, [...stops, stop]);
}

function drawHead() {
  const row = element("tr");
  for (const column of columns) {
    const button = element("button", { type: "button", "data-sorts": column.key }, column.title);
    button.addEventListener("click", () => {
      state.down = state.sort === column.key ? !state.down : Boolean(column.num);
      state.sort = column.key;
      showTable();
    });
    row.append(element("th", { scope: "col", class: column.num ? "num" : "", "data-column": column.key }, button));
  }
  document.querySelector("#plans thead").replaceChildren(row);
}

function showTable() {
  const rows = rowsShown();
  byId("plans-about").textContent = `${counted(rows.length, "plan")} of ${grouped(state.length)} tokens, for ` +
    counted(state.users, "user") + (known ? "; those that were planned so far" : "");
  for (const head of document.querySelectorAll("#plans th[data-column]")) {
    const mine = head.dataset.column === state.sort;
    head.setAttribute("aria-sort", mine ? (state.down ? "descending" : "ascending") : "none");
  }
  document.querySelector("#plans tbody").replaceChildren(...rows.map(tableRow));
}

function tableRow(row) {
  const made = element("tr");
  if (row.number === state.subject && String(row.stops) === String(state.stops)) made.setAttribute("aria-current", "true");
  columns.forEach((column, i) => {
    const text = column.text ? column.text(row) : String(column.of(row));
    const cell = element("td", { class: column.num ? "num" : "" });
    if (i === 0) {
      const what = `show ${text}: ${row.cards} cards, cache ${row.stop(CACHE)}, batch ${row.stop(BATCH)}`;
      const button = element("button", { type: "button", "aria-label": what }, text);
      const values = page.subjects[row.number].axes.map((axis, j) => valueOf(axis, row.stops[j]));
      button.addEventListener("click", () => choose(row.number, values));
      cell.append(button);
    } else cell.append(text);
    if (column.key === "verdict") cell.className = row.told.status;
    made.append(cell);
  });
  return made;
}

// --- link and copy
function stateText() {
  const chosen = window.kvpipeServer ? window.kvpipeServer.chosen() : {};
  const parts = new URLSearchParams({ s: state.subject, users: state.users, ...chosen });
  const values = valuesNow();
  subject().axes.forEach((axis, i) => parts.set(axis.key, values[i]));
  return parts.toString();
}

function readState() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const number = Number(parts.get("s"));
  state.subject = Number.isInteger(number) && page.subjects[number] ? number : 0;
  state.stops = subject().axes.map((axis) => {
    const at = axis.stops.findIndex((stop) => String(stop) === parts.get(axis.key));
    return at < 0 ? axis.start : at;
  });
  const length = Number(parts.get(LENGTH)), { stops, start } = lengthAxis();
  setLength(Number.isInteger(length) && length >= (known ? 1 : stops[0]) ? length : stops[start]);
  byId("snapped").textContent = "";
  const users = Number(parts.get("users"));
  if (Number.isInteger(users) && users > 0) state.users = Math.min(1000000, users);
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", { "aria-label": "copied text" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  byId("copied").textContent = "copied";
  setTimeout(() => { byId("copied").textContent = ""; }, 2500);
}

function open() {
  readState();
  drawHead();
  drawControls();
  const name = { request: "KV cache planner", sweep: "Jobs of a sweep", comparison: "Engines side by side", fleet: "Fleets that serve the load", live: "KV cache planner" };
  byId("heading").textContent = `kvpipe: ${name[page.kind]}`;
  document.title = `kvpipe: ${subject().model} on ${subject().device}`;
  byId("made").textContent = `kvpipe ${page.kvpipe}. Every number is from a plan that was made; between users it is fixed + each x users` +
    (known ? "." : ", between two lengths a form that was checked with plans.");
  byId("notes").hidden = !page.notes.length;
  document.querySelector("#notes ul").replaceChildren(...page.notes.map((note) => element("li", {}, note)));
  return show();
}

for (const button of document.querySelectorAll("[data-copies]")) {
  button.addEventListener("click", () => copy(byId(button.dataset.copies).textContent));
}
byId("link").addEventListener("click", () => copy(location.href));
byId("controls").addEventListener("submit", (event) => event.preventDefault());
window.addEventListener("hashchange", open);
window.kvpipe = { page, state, segments, verdict, positionAt, size, open, show };
if (page.kind !== "live") open();
