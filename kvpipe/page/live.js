// A served page: what is chosen or dropped, and a fresh plan for each change.

const HEADER_BYTES = 48 * 2 ** 20; // of a GGUF file its header is enough, which lies in front
let choice = page.choice;

async function ask(path, body) {
  const sent = typeof body === "object" && !(body instanceof Blob) ? JSON.stringify(body) : body;
  const answer = await fetch(path, { method: "POST", headers: { "x-kvpipe": "1" }, body: sent });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.problems.join("\n"));
  return value;
}

async function trying(work) {
  try {
    byId("problem").textContent = "";
    await work();
  } catch (error) {
    byId("problem").textContent = error.message;
  }
}

const modelWord = (model) => (typeof model === "number" ? `#${model}` : model); // of a file its number
window.kvpipeServer = {
  plan: (changes) => ask("/plan", { ...choice, changes }),
  chosen: () => ({ model: modelWord(choice.model), device: choice.device }),
};

// What a link to a state says of model and device; what is not listed here stays as it was.
function linked() {
  const parts = new URLSearchParams(location.hash.slice(1)), word = parts.get("model") || "";
  const file = page.files.find((each) => each.kind === "model" && word === `#${each.number}`);
  const listed = page.models.includes(word) ? word : choice.model;
  const device = page.devices.includes(parts.get("device")) ? parts.get("device") : choice.device;
  return { model: file ? file.number : listed, device };
}

function fill(select, names, value) {
  select.replaceChildren(...names.map(([key, name]) => element("option", { value: key }, name)));
  select.value = value;
}

function drawChoices() {
  const files = page.files.map((file) => [`#${file.number}`, `${file.name} (${file.kind === "log" ? "a log" : "a file"})`]);
  const models = page.models.map((name) => [name, name]);
  fill(byId("pick-model"), [...files, ...models], modelWord(choice.model));
  fill(byId("pick-device"), page.devices.map((name) => [name, name]), choice.device);
}

async function planChosen(next) {
  await trying(async () => {
    const made = await ask("/subject", next);
    choice = next;
    page.subjects = [made];
    known = new Map();
    await open();
  });
  drawChoices();
}

async function showLog(told) {
  byId("told").textContent = told.join("\n");
  byId("told").hidden = false;
}

byId("pick-model").addEventListener("change", () => {
  const value = byId("pick-model").value;
  const number = value.startsWith("#") ? Number(value.slice(1)) : null;
  if (number === null) return planChosen({ ...choice, model: value });
  if (page.files.find((file) => file.number === number).kind === "model") return planChosen({ ...choice, model: number });
  return trying(async () => showLog((await ask("/log", { file: number })).told));
});
byId("pick-device").addEventListener("change", () => planChosen({ ...choice, device: byId("pick-device").value }));

async function taken(file) {
  await trying(async () => {
    const part = file.slice(0, HEADER_BYTES);
    const kept = await ask(`/drop?name=${encodeURIComponent(file.name)}`, part);
    page.files.push(kept);
    drawChoices();
    if (kept.kind === "log") return showLog(kept.told);
    return planChosen({ ...choice, model: kept.number });
  });
}

byId("pick-file").addEventListener("change", () => { if (byId("pick-file").files[0]) taken(byId("pick-file").files[0]); });
for (const kind of ["dragover", "dragleave", "drop"]) {
  document.addEventListener(kind, (event) => {
    event.preventDefault();
    byId("upload").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) taken(event.dataTransfer.files[0]);
  });
}
window.addEventListener("hashchange", () => {
  const next = linked();
  if (next.model !== choice.model || next.device !== choice.device) planChosen(next);
});
planChosen(linked());
