"use strict";
const STEP = 20, MOST = 1000; // results
const SIDE = 640; // pixels of a picture that is searched with; models see fewer
const prefix = location.pathname.replace(/\/+$/, "");
const form = document.querySelector("form");
const [filters, asked, status, results, more, examples, facets, relax, viewer] =
  ["filters", "asked", "status", "results", "more", "examples", "facets", "relax", "viewer"].map((name) => document.getElementById(name));
const title = document.title;
let current, hits = [], seen = 0, answers = 0;

// What is asked stands in the address, so that it can be gone back to and sent to others; a picture stands in the
// browser's history.
function fromAddress() {
  const query = new URLSearchParams(location.search);
  const k = parseInt(query.get("k"), 10) || STEP;
  return {
    sentence: query.get("sentence") || "", language: query.get("language") || "", filters: query.getAll("filter"),
    like: query.get("like") || "", picture: (history.state || {}).picture || "", byPicture: query.has("picture"),
    least_precision: query.get("least_precision") || "", sort: query.get("sort") || "", k: Math.min(Math.max(k, STEP), MOST),
  };
}

function toAddress(state) {
  const query = new URLSearchParams();
  for (const name of ["sentence", "language", "like", "least_precision", "sort"]) if (state[name]) query.set(name, state[name]);
  for (const filter of state.filters) query.append("filter", filter);
  if (state.picture) query.set("picture", "");
  if (state.k > STEP) query.set("k", state.k);
  return prefix + "?" + query;
}

function go(changes) {
  const next = { ...current, k: STEP, byPicture: false, ...changes };
  history.replaceState({ ...history.state, scroll: scrollY }, "");
  history.pushState({ picture: next.picture }, "", toAddress(next));
  scrollTo(0, 0);
  ask(next);
}

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function button(text, onclick, label) {
  return element("button", { type: "button", className: "small", dir: "auto", onclick, ariaLabel: label || null }, text);
}

function thumbnail(row, alt, language) {
  const image = element("img", {
    src: prefix + "/thumbnail/" + row + "?of=" + encodeURIComponent(current.index || ""),
    alt, dir: "auto", lang: language, loading: "lazy",
  });
  image.addEventListener("error", () => image.replaceWith(element("div", { className: "missing" }, "not available")));
  return image;
}

function add(filter, others = current.filters) {
  go({ filters: [...new Set([...others, filter])] });
}

function field([name, value]) {
  if (/^https?:\/\/\S+$/.test(value)) {
    return element("a", { className: "small", href: value, rel: "noopener noreferrer" }, name);
  }
  return button(name + ": " + value, () => add(name + "=" + value), "Only " + name + "=" + value);
}

const WAYS = { exact: "exactly this", pictures: "picture", texts: "caption", words: "words" };

function result(hit, place) {
  const figure = element("figure", {});
  if (hit.has_image) {
    const link = { href: prefix + "/picture/" + hit.row, ariaLabel: "Larger: " + (hit.caption || hit.name) };
    const anchor = element("a", link, thumbnail(hit.row, hit.caption || hit.name, hit.language));
    anchor.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      view(place);
    });
    figure.append(anchor);
  }
  const found = Object.keys(hit.found_by).map((way) => WAYS[way]);
  const notes = [...(found.length ? ["by " + found.join(", ")] : []), ...(hit.alike ? [hit.alike + " more alike"] : [])];
  figure.append(element("p", { dir: "auto", lang: hit.language }, hit.caption || hit.name));
  if (hit.caption) figure.append(element("p", { dir: "auto", className: "name" }, hit.name));
  if (notes.length) figure.append(element("p", { className: "found" }, notes.join("; ")));
  figure.append(element("div", { className: "row" }, ...Object.entries(hit.fields).map(field),
    button("Like this", () => go({ like: String(hit.row), sentence: "", picture: "", sort: "" }))));
  return element("li", {}, figure);
}

// The viewer: one picture, its caption and fields; arrow keys go on.
function view(place) {
  const hit = hits[place];
  if (!hit) return;
  seen = place;
  const image = viewer.querySelector("img"), [shown, name] = viewer.querySelectorAll("p");
  image.alt = hit.caption || hit.name;
  image.src = prefix + "/picture/" + hit.row + "?of=" + encodeURIComponent(current.index || "");
  shown.textContent = hit.caption || hit.name;
  shown.lang = hit.language;
  name.textContent = [(place + 1) + " of " + hits.length, hit.name, ...Object.entries(hit.fields).map((pair) => pair.join(": "))].join(" · ");
  if (!viewer.open) viewer.showModal();
}

viewer.addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") view(seen - 1);
  if (event.key === "ArrowRight") view(seen + 1);
});
const [before, after, close] = viewer.querySelectorAll("button");
before.addEventListener("click", () => view(seen - 1));
after.addEventListener("click", () => view(seen + 1));
close.addEventListener("click", () => viewer.close());

// Filters: values with their counts, or from … to …; and by which field to sort.
async function showFacets(state) {
  const query = new URLSearchParams(state.filters.map((filter) => ["filter", filter]));
  const response = await fetch(prefix + "/facets?" + query).catch(() => null);
  const found = response && response.ok ? await response.json() : {};
  if (state.filters !== current.filters) return;
  const shown = Object.entries(found).filter(([name, facet]) => facet.least || Object.values(facet.values || {}).some((count) => count > 1));
  facets.hidden = !shown.length;
  const parts = shown.map(([name, facet]) => element("fieldset", {}, element("legend", { dir: "auto" }, name),
    ...(facet.values ? values(name, facet.values) : [ends(name, facet)])));
  const numbers = shown.filter(([name, facet]) => facet.least).map(([name]) => name);
  if (numbers.length) parts.push(sorting(numbers));
  facets.lastElementChild.replaceChildren(...parts);
}

function values(name, counts) {
  const labels = Object.entries(counts).map(([value, count]) => {
    const filter = name + "=" + value, box = element("input", { type: "checkbox", checked: current.filters.includes(filter) });
    box.addEventListener("change", () => box.checked ? add(filter) : go({ filters: current.filters.filter((one) => one !== filter) }));
    return element("label", { dir: "auto" }, box, " " + value + " (" + count + ")");
  });
  const rest = labels.slice(8);
  return [...labels.slice(0, 8), ...(rest.length ? [element("details", {}, element("summary", {}, rest.length + " more"), ...rest)] : [])];
}

function ends(name, facet) {
  const input = (sign, words, placeholder) => {
    const own = current.filters.find((filter) => filter.startsWith(name + sign));
    const made = element("input", { value: own ? own.slice((name + sign).length) : "", placeholder, ariaLabel: name + " " + words });
    made.addEventListener("change", () => {
      const others = current.filters.filter((filter) => filter !== own);
      if (made.value.trim()) add(name + sign + made.value.trim(), others);
      else go({ filters: others });
    });
    return made;
  };
  return element("div", { className: "ends" }, input(">=", "from", facet.least), " to ", input("<=", "up to", facet.most));
}

function sorting(names) {
  const choice = element("select", { ariaLabel: "Sort" }, element("option", { value: "" }, "best first"));
  for (const name of names) choice.append(element("option", { value: name }, name + ", lowest first"), element("option", { value: "-" + name }, name + ", highest first"));
  choice.value = current.sort;
  choice.addEventListener("change", () => go({ sort: choice.value }));
  return element("fieldset", {}, element("legend", {}, "Sort"), choice);
}

function showAsked(state) {
  form.elements.sentence.value = state.sentence;
  form.elements.sentence.lang = form.elements.language.value = state.language;
  form.elements.picture.value = "";
  if (form.elements.least_precision) form.elements.least_precision.value = state.least_precision;
  filters.replaceChildren(...state.filters.map((filter) => element("li", {},
    button(filter + " ×", () => go({ filters: state.filters.filter((other) => other !== filter) }), "Without " + filter))));
  asked.replaceChildren();
  if (state.like) asked.append(thumbnail(state.like, "", ""), "Like this one");
  if (state.picture) asked.append(element("img", { src: state.picture, alt: "" }), "Like your picture");
  document.title = state.sentence ? state.sentence + " – " + title : title;
}

async function fetchAnswer(state, offset) {
  const query = new URLSearchParams({ k: state.k - offset });
  if (offset) query.set("offset", offset);
  for (const name of ["sentence", "language", "like", "sort"]) if (state[name]) query.set(name, state[name]);
  if (state.sentence && state.least_precision && !state.filters.length && !state.sort) query.set("least_precision", state.least_precision);
  for (const filter of state.filters) query.append("filter", filter);
  const bytes = state.picture && Uint8Array.from(atob(state.picture.split(",")[1]), (letter) => letter.charCodeAt(0));
  const response = await fetch(prefix + "/answer?" + query, bytes ? { method: "POST", body: bytes } : {}).catch(() => {
    throw new Error("the server does not answer; ask again when it is back.");
  });
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Error(body.error || "The server answered " + response.status + ".");
  return body;
}

async function ask(state, scroll) {
  const mine = ++answers, further = current && current.k < state.k && toAddress({ ...current, k: state.k }) === toAddress(state);
  if (!further) hits = [];
  current = state;
  if (!further) {
    showAsked(state);
    showFacets(state);
  }
  more.hidden = true;
  relax.replaceChildren();
  examples.hidden = Boolean(state.sentence || state.like || state.picture);
  if (state.byPicture && !state.picture) {
    results.replaceChildren();
    status.textContent = "Only the browser that searched with this picture has it; choose it again.";
    return;
  }
  status.textContent = "Searching …";
  results.style.opacity = further ? 1 : 0.4; // what is there answers another question
  try {
    const body = await fetchAnswer(state, hits.length);
    if (mine !== answers) return;
    results.style.opacity = 1;
    current.index = body.index;
    if (!further) results.replaceChildren();
    const begin = hits.length;
    hits = [...hits, ...body.hits];
    results.append(...body.hits.map((hit, number) => result(hit, begin + number)));
    status.textContent = told(state, body);
    offer(body);
    more.hidden = hits.length < state.k || hits.length >= Math.min(body.total, MOST);
    if (scroll !== undefined) scrollTo(0, scroll);
  } catch (error) {
    if (mine !== answers) return;
    results.style.opacity = 1;
    results.replaceChildren();
    status.textContent = "No answer: " + error.message;
  }
}

function told(state, body) {
  const kind = body.matching.toLocaleString() + " " + body.kind;
  if (!body.matching) return "Nothing fits " + state.filters.join(" and ") + ".";
  if (body.left_out) return "No answer is sure enough; the first is right: " + body.in_words + ".";
  if (!hits.length) return "Nothing is left: take a word with a minus away.";
  if (!state.sentence && !state.like && !state.picture) return kind + (state.filters.length ? " fit" : "");
  const order = state.sort ? ", sorted by " + state.sort.replace(/^-/, "") : ", the closest first";
  return "Of " + kind + order + (body.in_words ? "; the first is right: " + body.in_words : "") + ".";
}

// What to take away where nothing fits, or nothing is sure enough.
function offer(body) {
  for (const [filter, count] of Object.entries(body.relax || {})) {
    const words = "Without " + filter + (current.filters.length > 1 ? " (" + count + ")" : "");
    relax.append(button(words, () => go({ filters: current.filters.filter((other) => other !== filter) })));
  }
  if (body.left_out) relax.append(button("Show all the same", () => go({ least_precision: "" })));
}

async function shrink(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = element("canvas", {
    width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)),
  });
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.92);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const { sentence, language, least_precision } = form.elements;
  const text = sentence.value.trim(), changes = { language: language.value };
  if (least_precision) changes.least_precision = least_precision.value;
  go({ ...changes, sentence: text, ...(text ? { like: "", picture: "" } : {}) });
});
form.elements.language.addEventListener("change", (event) => { form.elements.sentence.lang = event.target.value; });
form.elements.picture.addEventListener("change", async (event) => {
  const [file] = event.target.files;
  if (!file) return;
  const picture = await shrink(file).catch(() => "");
  if (picture) go({ picture, sentence: "", like: "" });
  else status.textContent = "This browser cannot read that picture; JPEG and PNG always work.";
});
more.addEventListener("click", () => {
  const next = { ...current, k: Math.min(current.k + STEP, MOST) };
  history.replaceState(history.state, "", toAddress(next));
  ask(next);
});
for (const example of examples.querySelectorAll("button")) {
  example.addEventListener("click", () => go({ sentence: example.textContent, like: "", picture: "" }));
}
for (const option of [...form.elements.language.options].slice(1)) { // names in place of codes
  try {
    const name = new Intl.DisplayNames([navigator.language, "en"], { type: "language" }).of(option.value);
    option.textContent = name[0].toLocaleUpperCase() + name.slice(1);
  } catch { /* the code stays */ }
}
form.elements.language.append(...[...form.elements.language.options].slice(1).sort((a, b) => a.text.localeCompare(b.text)));
facets.open = matchMedia("(min-width: 60rem)").matches;
addEventListener("popstate", () => ask(fromAddress(), (history.state || {}).scroll));
ask(fromAddress());
