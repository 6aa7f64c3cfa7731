"use strict";
// All that people typed reaches the page through text nodes and attribute values only.

const content = JSON.parse(document.getElementById("data").textContent);
const models = content.models;
const PANELS = { raw: "raw", effective: "effective", max_entropy: "max entropy" };
const MEASURES = {
  loss: ["loss", "cross-entropy, nats"],
  accuracy: ["accuracy", "share of texts classified right"],
  macro_f1: ["macro F1", "mean over classes of F1"],
  identifiable: ["identifiable", "share of (text, head) pairs whose weights are determined by the head's output"],
  nullity: ["nullity", "directions in which a row of weights can move unseen"],
  simplex_nullity: ["simplex nullity", "directions in which a row can move unseen and still sum to 1"],
  margin: ["margin", "least relative change of the output under any shift of weight; median"],
  key_ambiguity: ["key ambiguity", "directions that a query can take unseen while the keys stay"],
  slack: ["slack", "how far a row's largest weight can at least move unseen"],
  pearson: ["Pearson", "correlation of raw and effective attention"],
  pearson_preserve_sum: ["Pearson, sums kept", "the same for effective attention with row sums kept"],
  residual: ["residual", "size of the unseen part relative to the raw map"],
  negative_mass: ["negative mass", "sum of a row's negative effective weights"],
  length: ["tokens", ""],
  rank: ["rank", ""],
};
const RUN_COLOURS = 8;
const state = { view: "", model: 0, text: 0, layer: 0, head: 0, token: 0, order: "position", hide: 0, theme: "" };
const at = (id) => document.getElementById(id);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const place = (name) => Object.keys(MEASURES).indexOf(name.split("/").pop());
const inOrder = (names) => [...names].sort((a, b) => place(a) - place(b));
const label = (name) => (MEASURES[name.split("/").pop()] || [name])[0];
const figure = (value, digits = 4) =>
  value === null || value === undefined ? "–" : Number.isInteger(value) ? value.toLocaleString("en") : +value.toPrecision(digits) + "";
const weight = (steps) => (steps * content.step).toFixed(4);
const cell = (value, tag = "td", kind = "") => element(tag, kind ? { class: kind } : {}, value);

function table(head, lines, numeric = true) {
  const kind = (place) => (place && numeric ? "number" : "");
  return element("table", {},
    element("thead", {}, element("tr", {}, ...head.map((name, place) => cell(name, "th", kind(place))))),
    element("tbody", {}, ...lines.map((line) =>
      element("tr", {}, ...line.map((value, place) => cell(value, place ? "td" : "th", kind(place)))))));
}

function options(select, entries, chosen) {
  select.replaceChildren(...entries.map(([value, name]) => element("option", { value }, name)));
  select.value = chosen;
}

// ---- overview ----

function showOverview() {
  const body = at("overview-body");
  const names = [...new Set(models.flatMap((model) => model.facts.map(([name]) => name)))];
  const facts = models.map((model) => Object.fromEntries(model.facts));
  const rows = names.map((name) => [name, ...facts.map((fact) => fact[name] ?? "–")]);
  body.replaceChildren(wide(table(["", ...models.map((model) => model.name)], rows, false)));
  const scores = inOrder(new Set(models.flatMap((model) => Object.keys(model.scores))));
  if (scores.length) {
    const splits = ["val", "test"].flatMap((split) => models.map((model) => [split, model]));
    const head = splits.map(([split, model]) => (split === "val" ? "validation" : "test") + (models.length > 1 ? ", " + model.name : ""));
    const lines = scores.map((name) => [label(name), ...splits.map(([split, model]) => figure(model.scores[name]?.[split]))]);
    body.append(element("h3", {}, "Scores and measures of the best checkpoint"), wide(table(["", ...head], lines)));
  }
  for (const model of models) {
    for (const [name, text] of Object.entries(model.documents))
      body.append(element("details", {}, element("summary", {}, `${name} of ${model.name}`), element("pre", {}, text)));
  }
}

const wide = (inside) => element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table, scrollable" }, inside);

// ---- curves ----

function showCurves() {
  const layer = at("curves-layer").value;
  const series = {};
  models.forEach((model, number) => {
    for (const [name, points] of Object.entries(model.curves)) {
      const parts = name.split("/");
      if ((parts[1].startsWith("layer_") ? parts[1].slice(6) : "") !== layer) continue;
      const line = { number, name: model.name, split: parts[0], points };
      (series[parts.slice(layer === "" ? 1 : 2).join("/")] ||= []).push(line);
    }
  });
  at("curves-body").replaceChildren(...inOrder(Object.keys(series)).map((name) => chart(name, series[name])));
  const keys = models.flatMap((model, number) => Object.keys(model.curves).length ? [[model.name, number]] : []);
  at("curves-legend").replaceChildren(
    ...keys.map(([name, number]) => element("span", {}, sample(`run-${number % RUN_COLOURS}`), element("bdi", {}, name))),
    element("span", {}, sample(), "validation"), element("span", {}, sample("", "5 4"), "training"));
}

const sample = (kind = "", dash = "") => drawn("svg", { class: kind, width: 28, height: 8, "aria-hidden": "true" },
  drawn("line", { x1: 0, x2: 28, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": dash }));

// Round numbers from low to high, three or more of them.
function ticks(low, high) {
  const power = 10 ** Math.floor(Math.log10(high - low));
  const number = (step) => Math.floor(high / step + 1e-9) - Math.ceil(low / step - 1e-9) + 1;
  const step = [5, 2, 1, 0.5, 0.2].map((factor) => factor * power).find((step) => number(step) >= 3);
  return Array.from({ length: number(step) }, (_, k) => +((Math.ceil(low / step - 1e-9) + k) * step).toPrecision(12));
}

function chart(name, lines) {
  const [width, height, left, right, top, bottom] = [360, 220, 46, 10, 10, 38];
  const all = lines.flatMap((line) => line.points);
  let [low, high] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
  if (high - low < 1e-9 * Math.max(1, Math.abs(high))) [low, high] = [low - 0.5 * (Math.abs(low) || 1), high + 0.5 * (Math.abs(high) || 1)];
  const last = Math.max(1, ...all.map((p) => p[0])), pad = (high - low) * 0.06;
  [low, high] = [low - pad, high + pad];
  const x = (step) => left + (step / last) * (width - left - right);
  const y = (value) => top + ((high - value) / (high - low)) * (height - top - bottom);
  const picture = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${label(name)} over training steps; numbers below` });
  for (const value of ticks(low, high)) picture.append(
    drawn("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
    drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, figure(value)));
  for (const step of ticks(0, last)) picture.append(
    drawn("text", { x: x(step), y: height - bottom + 16, "text-anchor": "middle" }, figure(step)));
  picture.append(drawn("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, "training step"));
  for (const line of lines) {
    const kind = `run-${line.number % RUN_COLOURS}`, dash = line.split === "train" ? "5 4" : "";
    const points = line.points.map(([step, value]) => `${x(step)},${y(value)}`).join(" ");
    picture.append(drawn("polyline", { class: `line ${kind}`, points, "stroke-dasharray": dash }));
    if (line.split !== "train") for (const [step, value] of line.points)
      picture.append(drawn("circle", { cx: x(step), cy: y(value), r: 3, class: kind },
        drawn("title", {}, `${line.name}, step ${step}: ${figure(value, 5)}`)));
  }
  const rows = lines.flatMap((line) => line.points.map(([step, value]) => [line.name, line.split, figure(step), figure(value, 5)]));
  const caption = element("figcaption", {}, label(name));
  caption.append(element("div", { class: "note" }, (MEASURES[name.split("/").pop()] || ["", ""])[1]));
  return element("figure", {}, caption, picture,
    element("details", {}, element("summary", {}, "Numbers"), table(["run", "split", "step", label(name)], rows)));
}

// ---- measures ----

const measured = () => models.filter((model) => model.measures.length);

function showMeasures() {
  const lines = measured()[+at("measures-run").value].measures;
  const epochs = [...new Set(lines.map((line) => line.epoch))];
  if (!epochs.includes(+at("measures-epoch").value) || at("measures-epoch").options.length !== epochs.length)
    options(at("measures-epoch"), epochs.map((epoch) => [epoch, epoch]), epochs[epochs.length - 1]);
  const name = at("measures-name").value;
  const shown = lines.filter((line) => line.epoch === +at("measures-epoch").value);
  const buckets = [...new Set(shown.map((line) => line.length_from))].sort((a, b) => a - b);
  const until = Object.fromEntries(shown.map((line) => [line.length_from, line.length_to]));
  const texts = Object.fromEntries(shown.map((line) => [line.length_from, line.texts]));
  const heads = [...new Set(shown.map((line) => `${line.layer},${line.head}`))];
  const found = Object.fromEntries(shown.map((line) => [`${line.layer},${line.head},${line.length_from}`, line[name]]));
  const numbers = Object.values(found).filter((value) => typeof value === "number");
  const [low, high] = [Math.min(0, ...numbers), Math.max(...numbers)];
  const tinted = (value) => {
    const made = cell(typeof value === "number" ? figure(value, 3) : "–");
    made.style.setProperty("--share", typeof value === "number" && high > low ? (value - low) / (high - low) : 0);
    return made;
  };
  at("measures-table").replaceChildren(
    element("thead", {}, element("tr", {}, cell("layer", "th"), cell("head", "th"),
      ...buckets.map((from) => element("th", { scope: "col", class: "number" }, `${from}–${until[from]} tokens`, element("br"), `${texts[from]} texts`)))),
    element("tbody", {}, ...heads.map((place) => {
      const [layer, head] = place.split(",");
      return element("tr", {}, cell(layer, "th"), cell(head, "th"), ...buckets.map((from) => tinted(found[`${place},${from}`])));
    })));
  at("measures-note").textContent = `${label(name)}: ${(MEASURES[name.split("/").pop()] || ["", name])[1]}. Validation texts after each epoch; the stronger the colour, the larger.`;
}

// ---- attention ----

const explored = () => models.filter((model) => model.texts.length);
let maps = { id: "", numbers: null };
let current = 0;

async function unpack(id) {
  const bytes = Uint8Array.from(atob(at(id).textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = planes.length / 2, numbers = new Int16Array(size);
  for (let k = 0; k < size; k++) {
    const zigzag = planes[k] | (planes[size + k] << 8);
    numbers[k] = (zigzag >>> 1) ^ -(zigzag & 1);
  }
  return numbers;
}

function chosen() {
  const model = explored()[state.model], text = model.texts[state.text];
  const head = text.heads.find((head) => head.layer === state.layer && head.head === state.head);
  return { model, text, head, n: text.tokens.length };
}

function keepInRange() {
  const inside = (value, size) => (Number.isInteger(value) && value >= 0 && value < size ? value : 0);
  state.model = inside(state.model, explored().length);
  const { texts } = explored()[state.model];
  state.text = inside(state.text, texts.length);
  const { heads, tokens } = texts[state.text];
  if (!heads.some((head) => head.layer === state.layer)) state.layer = heads[0].layer;
  if (!heads.some((head) => head.layer === state.layer && head.head === state.head))
    state.head = heads.find((head) => head.layer === state.layer).head;
  state.token = inside(state.token, tokens.length);
}

const visible = ({ text }) => [...text.tokens.keys()].filter((place) => !(state.hide && text.special[place]));

async function showAttention() {
  const turn = ++current;
  keepInRange();
  const here = chosen();
  if (maps.id !== here.head.block) {
    const numbers = await unpack(here.head.block);
    if (turn !== current) return;
    maps = { id: here.head.block, numbers };
  }
  showControls(here);
  showText(here);
  const row = rowOf(here);
  showSummary(here, row);
  showMaps(here);
  showBars(here, row);
  document.body.dataset.shown = [state.model, state.text, state.layer, state.head, state.token].join(",");
}

function rowOf({ head, n }) {
  const row = {};
  ["raw", "effective", "max_entropy", "lower", "upper"].forEach((name, number) => {
    const start = (number * n + state.token) * n;
    row[name] = maps.numbers.subarray(start, start + n);
  });
  row.interval = head.intervals[state.token] || null;
  return row;
}

function showControls({ model, text }) {
  const unique = (name, heads) => [...new Set(heads.map((head) => head[name]))].map((value) => [value, value]);
  options(at("model"), explored().map((model, number) => [number, model.name]), state.model);
  options(at("layer"), unique("layer", text.heads), state.layer);
  options(at("head"), unique("head", text.heads.filter((head) => head.layer === state.layer)), state.head);
  options(at("token"), text.tokens.map((token, place) => [place, `${place}: ${token}`]), state.token);
  at("order").value = state.order;
  at("hide").checked = Boolean(state.hide);
  filterTexts(model);
}

function filterTexts(model) {
  const sought = at("search").value.toLocaleLowerCase();
  const fits = ({ text }) => text.toLocaleLowerCase().includes(sought);
  const found = model.texts.map((text, number) => [number, text]).filter(([number, text]) => fits(text) || number === state.text);
  const short = (text) => (text.length > 90 ? [...text].slice(0, 90).join("") + "…" : text);
  options(at("text"), found.map(([number, text]) => [number, `${text.row}: ${short(text.text)}`]), state.text);
  const count = model.texts.filter(fits).length;
  at("found").textContent = sought ? `${count} of ${model.texts.length} texts hold “${at("search").value}”.` : "";
}

function showText({ text }) {
  at("source").textContent = text.text;
  at("prediction").replaceChildren(...text.prediction.flatMap(([name, probability], place) =>
    [place ? ", " : "Predicted: ", element("bdi", {}, name), ` ${probability.toFixed(4)}`]));
  const strip = at("strip");
  const focused = strip.contains(document.activeElement);
  strip.replaceChildren(...text.tokens.map((token, place) => {
    const chosen = place === state.token;
    const button = element("button", { type: "button", "aria-pressed": chosen, tabindex: chosen ? 0 : -1, "data-place": place, title: `token ${place}` }, token);
    button.hidden = Boolean(state.hide && text.special[place] && !chosen);
    return button;
  }));
  if (focused) strip.children[state.token].focus();
}

function showSummary(here, row) {
  const { text, head, n } = here;
  const quoted = (place) => `“${text.tokens[place]}” (${place})`;
  const largest = (name) => visible(here).reduce((best, place) => (best < 0 || row[name][place] > row[name][best] ? place : best), -1);
  const top = largest("raw");
  const parts = [`Layer ${head.layer}, head ${head.head}, query ${quoted(state.token)} of ${n} tokens.`];
  if (top >= 0) {
    parts.push(`Largest raw weight ${weight(row.raw[top])} on ${quoted(top)}.`);
    if (head.measures.identifiable === 1) parts.push("The head's output determines its weights.");
    else parts.push(`It can be anything from ${weight(row.lower[top])} to ${weight(row.upper[top])} with the same output.`);
    if (row.interval) parts.push(`Exactly: ${weight(row.interval[0][top])} to ${weight(row.interval[1][top])}.`);
    for (const name of ["effective", "max_entropy"]) {
      const place = largest(name);
      parts.push(`Largest ${PANELS[name]} weight ${weight(row[name][place])} on ${quoted(place)}.`);
    }
  }
  if (!head.converged[state.token]) parts.push("The max-entropy weights of this row were not found to their tolerance.");
  at("summary").textContent = parts.join(" ");
  at("facts").replaceChildren(...Object.entries(head.measures).map(([name, value]) =>
    element("div", { title: (MEASURES[name] || ["", ""])[1] }, cell(label(name), "dt"), cell(figure(value), "dd"))));
}

function colours() {
  const probe = element("span", {});
  document.body.append(probe);
  const found = ["--page", "--positive", "--negative"].map((name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  });
  probe.remove();
  return found;
}

function showMaps(here) {
  const { n } = here, places = visible(here), size = places.length;
  const [page, positive, negative] = colours();
  const square = n * n;
  let most = 0, least = 0;
  for (let number = 0; number < 3; number++) for (const query of places) for (const key of places) {
    const value = maps.numbers[number * square + query * n + key];
    most = Math.max(most, value);
    least = Math.min(least, value);
  }
  const extent = Math.max(most, -least, 1);
  at("maps-box").hidden = size === 0;
  at("maps").replaceChildren(...Object.values(PANELS).map((name, number) => {
    const canvas = element("canvas", { width: Math.max(size, 1), height: Math.max(size, 1), role: "img", "aria-label": `Map of ${name} attention, ${size} by ${size} tokens; the table below holds the chosen row` });
    const context = canvas.getContext("2d"), image = context.createImageData(Math.max(size, 1), Math.max(size, 1));
    places.forEach((query, down) => places.forEach((key, across) => {
      const value = maps.numbers[number * square + query * n + key];
      const share = Math.sqrt(Math.abs(value) / extent), end = value < 0 ? negative : positive;
      const start = 4 * (down * size + across);
      for (let part = 0; part < 3; part++) image.data[start + part] = page[part] + share * (end[part] - page[part]);
      image.data[start + 3] = 255;
    }));
    context.putImageData(image, 0, 0);
    canvas.addEventListener("click", (event) => go({ token: places[Math.min(size - 1, Math.floor((event.offsetY / canvas.clientHeight) * size))] }));
    const frame = element("div", { class: "frame" }, canvas);
    const down = places.indexOf(state.token);
    if (down >= 0) {
      const mark = element("div", { class: "mark" });
      mark.style.top = `${(100 * down) / size}%`;
      mark.style.height = `${100 / size}%`;
      frame.append(mark);
    }
    return element("figure", {}, element("figcaption", {}, name), frame);
  }));
  at("maps-scale").replaceChildren("Colour ", gradient(least, most, extent), "by the square root of the weight’s size; blue is negative. The outlined row is the query’s.");
}

function gradient(least, most, extent) {
  const low = least < 0 ? 1 : 0, made = drawn("svg", { width: 190, height: 30, role: "img", "aria-label": `from ${weight(low ? -extent : 0)} to ${weight(extent)}` });
  made.style.display = "inline-block";
  for (let k = 0; k < 60; k++) {
    const share = low ? (k - 29.5) / 30 : k / 59;
    made.append(drawn("rect", { class: share < 0 ? "negative" : "positive", x: 5 + 3 * k, y: 0, width: 3.2, height: 12, "fill-opacity": Math.sqrt(Math.abs(share)) }));
  }
  made.append(drawn("text", { x: 0, y: 26 }, weight(low ? -extent : 0)), drawn("text", { x: 190, y: 26, "text-anchor": "end" }, weight(extent)));
  if (low) made.append(drawn("text", { x: 95, y: 26, "text-anchor": "middle" }, "0"));
  return made;
}

function showBars(here, row) {
  const { text, head } = here, places = visible(here);
  const size = { position: (place) => place, raw: (place) => -row.raw[place], effective: (place) => -Math.abs(row.effective[place]), max_entropy: (place) => -row.max_entropy[place] }[state.order];
  places.sort((a, b) => size(a) - size(b) || a - b);
  const numbers = places.flatMap((place) => [row.raw[place], row.effective[place], row.max_entropy[place], row.upper[place], row.interval ? row.interval[1][place] : 0]);
  const [low, high] = [Math.min(0, ...numbers), Math.max(1, ...numbers)];
  const x = (value) => `${(2 + (96 * (value - low)) / (high - low)).toFixed(3)}%`;
  const span = (a, b) => `${((96 * (b - a)) / (high - low)).toFixed(3)}%`;
  at("bars-title").replaceChildren("Weights of query ", element("bdi", {}, text.tokens[state.token]), ` (token ${state.token}) on each token`);
  const head_ = [["", "place"], ["token", "word"], ...Object.values(PANELS).map((name) => [name, "part"]), ["slack", "range"], ...(row.interval ? [["exact interval", "range"]] : [])];
  const titles = element("tr", {}, ...head_.map(([name, kind]) => {
    const made = element("th", { scope: "col", class: kind }, name);
    if (kind === "part") made.append(axis(low, high, x));
    return made;
  }));
  const lines = places.map((place) => {
    const kinds = [place === state.token ? "query" : "", text.special[place] ? "special" : ""].join(" ").trim();
    const parts = Object.keys(PANELS).map((name) => {
      const value = row[name][place];
      const picture = drawn("svg", { width: "100%", height: 16, "aria-hidden": "true" },
        drawn("rect", { class: value < 0 ? "negative" : "positive", x: x(Math.min(0, value)), width: span(0, Math.abs(value)), y: 3, height: 10 }),
        drawn("line", { class: "zero", x1: x(0), x2: x(0), y1: 0, y2: 16 }));
      if (name === "raw") {
        if (row.interval) picture.append(whisker("interval", x(row.interval[0][place]), x(row.interval[1][place]), 13, 3));
        picture.append(whisker("slack", x(row.lower[place]), x(row.upper[place]), 8, 3));
      }
      return element("td", { "data-map": name, "data-steps": value }, element("div", { class: "bar" }, picture, element("span", {}, weight(value))));
    });
    const ranges = [[row.lower[place], row.upper[place]], ...(row.interval ? [[row.interval[0][place], row.interval[1][place]]] : [])];
    return element("tr", { "data-place": place, ...(kinds ? { class: kinds } : {}) },
      element("td", { class: "place" }, `${place}`),
      element("th", { scope: "row", class: "word" }, element("bdi", {}, text.tokens[place])),
      ...parts, ...ranges.map(([from, to]) => element("td", { class: "range" }, `${weight(from)} to ${weight(to)}`)));
  });
  at("bars").replaceChildren(element("thead", {}, titles), element("tbody", {}, ...lines));
  const key = (kind, sentence) => element("li", {}, drawn("svg", { width: 26, height: 14, "aria-hidden": "true" }, kind.startsWith("s") || kind.startsWith("i") ? whisker(kind, 2, 24, 7, 3) : drawn("rect", { class: kind, x: 3, y: 2, width: 20, height: 10 })), sentence);
  at("key").replaceChildren(key("positive", "positive weight"), key("negative", "negative weight, left of zero"),
    key("slack", "slack: the weight can certainly reach this far with the same output"),
    ...(row.interval ? [key("interval", "exact interval: it can reach this far and no further")] : []));
}

function whisker(kind, from, to, y, half) {
  return drawn("g", { class: kind }, drawn("line", { class: kind, x1: from, x2: to, y1: y, y2: y }),
    ...[from, to].map((x) => drawn("line", { class: kind, x1: x, x2: x, y1: y - half, y2: y + half })));
}

function axis(low, high, x) {
  const made = drawn("svg", { width: "100%", height: 16, "aria-hidden": "true" });
  const entries = [[0, "middle"], [high, "end"], ...(low < -0.25 * (high - low) ? [[low, "start"]] : [])];
  for (const [value, anchor] of entries)
    made.append(drawn("text", { x: x(value), y: 12, "text-anchor": value === 0 && low > -0.1 * (high - low) ? "start" : anchor }, value === 0 ? "0" : figure(value * content.step, 2)));
  return element("div", { class: "bar" }, made);
}

// ---- state, link, theme ----

function read() {
  const found = new URLSearchParams(location.hash.slice(1));
  for (const name of Object.keys(state)) {
    if (!found.has(name)) continue;
    const value = found.get(name);
    state[name] = typeof state[name] === "number" ? Number(value) : value;
  }
  if (![...at("order").options].some((option) => option.value === state.order)) state.order = "position";
}

function link() {
  const all = new URLSearchParams(Object.entries(state).filter(([, value]) => value !== ""));
  return `#${all}`;
}

function go(change) {
  Object.assign(state, change);
  try {
    history.replaceState(null, "", link());
  } catch {
    // A page in a frame without an address of its own has no link.
  }
  show();
}

function show() {
  if (!views.includes(state.view)) state.view = views[0];
  if (["light", "dark"].includes(state.theme)) document.documentElement.dataset.theme = state.theme;
  else delete document.documentElement.dataset.theme;
  at("theme").value = state.theme;
  for (const button of at("views").children) {
    const here = button.dataset.view === state.view;
    at(button.dataset.view).hidden = !here;
    if (here) button.setAttribute("aria-current", "page");
    else button.removeAttribute("aria-current");
  }
  if (state.view === "overview") showOverview();
  if (state.view === "curves") showCurves();
  if (state.view === "measures") showMeasures();
  if (state.view === "attention") showAttention();
}

const views = [
  ...(explored().length ? ["attention"] : []),
  "overview",
  ...(models.some((model) => Object.keys(model.curves).length) ? ["curves"] : []),
  ...(measured().length ? ["measures"] : []),
];

function listen() {
  const numbers = ["model", "text", "layer", "head", "token"];
  for (const name of numbers) at(name).addEventListener("change", () => go({ [name]: +at(name).value }));
  at("order").addEventListener("change", () => go({ order: at("order").value }));
  at("theme").addEventListener("change", () => go({ theme: at("theme").value }));
  at("hide").addEventListener("change", () => go({ hide: +at("hide").checked }));
  at("search").addEventListener("input", () => filterTexts(chosen().model));
  at("curves-layer").addEventListener("change", showCurves);
  for (const name of ["run", "name", "epoch"]) at(`measures-${name}`).addEventListener("change", showMeasures);
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  at("strip").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) go({ token: +button.dataset.place });
  });
  at("strip").addEventListener("keydown", move);
  at("copy").addEventListener("click", copy);
  addEventListener("hashchange", () => { read(); show(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
}

function move(event) {
  const shown = [...at("strip").children].filter((button) => !button.hidden);
  const place = shown.indexOf(document.activeElement);
  const next = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: shown.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  shown[Math.max(0, Math.min(shown.length - 1, next))].focus();
}

async function copy() {
  const address = location.href.split("#")[0] + link();
  try {
    await navigator.clipboard.writeText(address);
    at("found").textContent = "The link was copied.";
  } catch {
    at("found").textContent = `The link: ${address}`;
  }
}

function start() {
  at("title").textContent = content.title;
  document.title = content.title;
  at("footer").textContent = content.footer;
  at("views").append(...views.map((name) => {
    const button = element("button", { type: "button", "data-view": name }, name[0].toUpperCase() + name.slice(1));
    button.addEventListener("click", () => go({ view: name }));
    return button;
  }));
  at("model-label").hidden = explored().length < 2;
  const layers = [...new Set(models.flatMap((model) => Object.keys(model.curves)).map((name) => name.match(/\/layer_(\d+)\//)?.[1]).filter(Boolean))];
  options(at("curves-layer"), [["", "all layers"], ...layers.map((layer) => [layer, `layer ${layer}`])], "");
  at("curves-note").textContent = "Validation of the weights as they were then; the overview has the best checkpoint's scores. Lines that coincide hide each other: “Numbers” lists all.";
  if (measured().length) {
    options(at("measures-run"), measured().map((model, number) => [number, model.name]), 0);
    at("measures-run-label").hidden = measured().length < 2;
    const names = [...new Set(measured().flatMap((model) => model.measures.flatMap(Object.keys)))].filter((name) => name.includes("/"));
    options(at("measures-name"), names.map((name) => [name, label(name)]), names[0]);
  }
  listen();
  read();
  show();
}

start();
