"use strict";
const STEP = 20, MOST = 1000; // results
const SIDE = 640; // pixels of a picture that is searched with; models see fewer
const prefix = location.pathname.replace(/\/+$/, "");
const form = document.querySelector("form");
const [filters, asked, status, results, more] =
  ["filters", "asked", "status", "results", "more"].map((name) => document.getElementById(name));
const title = document.title;
let current, answers = 0;

// What is asked stands in the address, so that it can be gone back to and sent to others; a picture stands in the
// browser's history.
function fromAddress() {
  const query = new URLSearchParams(location.search);
  const k = parseInt(query.get("k"), 10) || STEP;
  return {
    sentence: query.get("sentence") || "", language: query.get("language") || "", filters: query.getAll("filter"),
    like: query.get("like") || "", picture: (history.state || {}).picture || "", byPicture: query.has("picture"),
    least_precision: query.get("least_precision") || "", k: Math.min(Math.max(k, STEP), MOST),
  };
}

function toAddress(state) {
  const query = new URLSearchParams();
  for (const name of ["sentence", "language", "like", "least_precision"]) if (state[name]) query.set(name, state[name]);
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

function field([name, value]) {
  if (/^https?:\/\/\S+$/.test(value)) {
    return element("a", { className: "small", href: value, rel: "noopener noreferrer" }, name);
  }
  const filter = name + "=" + value;
  return button(name + ": " + value, () => go({ filters: [...new Set([...current.filters, filter])] }), "Only " + filter);
}

function result(hit) {
  const figure = element("figure", {});
  if (hit.has_image) {
    const link = { href: prefix + "/picture/" + hit.row, ariaLabel: "Larger: " + (hit.caption || hit.name) };
    figure.append(element("a", link, thumbnail(hit.row, hit.caption || hit.name, hit.language)));
  }
  figure.append(element("figcaption", {},
    element("p", { className: "score" }, hit.rank + ". " + hit.score.toFixed(3)),
    element("p", { dir: "auto", lang: hit.language }, hit.caption),
    element("p", { dir: "auto", className: "name" }, hit.name),
    element("div", { className: "row" }, ...Object.entries(hit.fields).map(field),
      button("Like this", () => go({ like: String(hit.row), sentence: "", picture: "" })))));
  return element("li", {}, figure);
}

function showAsked(state) {
  form.elements.sentence.value = state.sentence;
  form.elements.sentence.lang = form.elements.language.value = state.language;
  form.elements.picture.value = "";
  if (form.elements.filter) form.elements.filter.value = "";
  if (form.elements.least_precision) form.elements.least_precision.value = state.least_precision;
  filters.replaceChildren(...state.filters.map((filter) => element("li", {},
    button(filter + " ×", () => go({ filters: state.filters.filter((other) => other !== filter) }), "Without " + filter))));
  asked.replaceChildren();
  if (state.like) asked.append(thumbnail(state.like, "", ""), "Like this one");
  if (state.picture) asked.append(element("img", { src: state.picture, alt: "" }), "Like your picture");
  document.title = state.sentence ? state.sentence + " – " + title : title;
}

async function fetchAnswer(state) {
  const query = new URLSearchParams({ k: state.k });
  for (const name of ["sentence", "language", "like"]) if (state[name]) query.set(name, state[name]);
  if (state.sentence && state.least_precision) query.set("least_precision", state.least_precision);
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
  current = state;
  if (!further) showAsked(state);
  more.hidden = true;
  if (!state.sentence && !state.like && !state.picture) {
    results.replaceChildren();
    const lost = "Only the browser that searched with this picture has it; choose it again.";
    status.textContent = state.byPicture ? lost : state.filters.length ? "Now say what you look for." : "";
    return;
  }
  status.textContent = "Searching …";
  results.style.opacity = further ? 1 : 0.4; // what is there answers another question
  try {
    const body = await fetchAnswer(state);
    if (mine !== answers) return;
    results.style.opacity = 1;
    current.index = body.index;
    if (!further) results.replaceChildren();
    results.append(...body.hits.slice(results.children.length).map(result));
    status.textContent = (body.left_out ? "No answer is sure enough" :
      !body.matching ? "Nothing passes " + state.filters.join(" and ") + ": take a filter away" :
      body.hits.length + " of " + body.matching + " " + body.kind + ", the closest first") + howSure(body);
    more.hidden = body.hits.length < state.k || body.hits.length >= Math.min(body.matching, MOST);
    if (scroll !== undefined) scrollTo(0, scroll);
  } catch (error) {
    if (mine !== answers) return;
    results.style.opacity = 1;
    results.replaceChildren();
    status.textContent = "No answer: " + error.message;
  }
}

function howSure(body) {
  if (body.probability === undefined) return "";
  const [first, alike] = [body.probability, body.precision].map((share) => Math.round(100 * share) + "%");
  return ": the first is right with " + first + ", answers as sure with " + alike;
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
  const { sentence, language, filter, least_precision } = form.elements;
  const text = sentence.value.trim(), added = filter ? filter.value.trim() : "";
  const changes = { language: language.value, filters: [...new Set([...current.filters, ...(added ? [added] : [])])] };
  if (least_precision) changes.least_precision = least_precision.value;
  go(text ? { ...changes, sentence: text, like: "", picture: "" } : changes);
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
addEventListener("popstate", () => ask(fromAddress(), (history.state || {}).scroll));
ask(fromAddress());
