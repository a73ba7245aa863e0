// Answers while somebody types: the same page is asked for, and its answer takes the place of the shown answer.
(() => {
  const input = document.querySelector(".sentence");
  const form = input.form;
  let timer = 0;
  let request = new AbortController();
  let shown = input.value.trim();

  async function answer() {
    const sentence = input.value.trim();
    if (sentence === shown) return;
    request.abort();
    request = new AbortController();
    const fields = new URLSearchParams([...new FormData(form)].filter(([, text]) => text.trim()));
    const address = fields.size === 0 ? form.action : `${form.action}?${fields}`;
    try {
      const response = await fetch(address, { signal: request.signal });
      if (!response.ok) return; // "-red" alone is no question yet; the button says so
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      for (const id of ["examples", "answer"]) document.getElementById(id).replaceWith(page.getElementById(id));
      document.getElementById("status").replaceChildren(...page.getElementById("status").childNodes);
      document.title = page.title;
      shown = sentence;
      history.replaceState(null, "", address);
    } catch (error) {
      if (error.name !== "AbortError") shown = null; // the next letter asks again
    }
  }

  input.addEventListener("input", (event) => {
    clearTimeout(timer);
    if (!event.isComposing) timer = setTimeout(answer, 250);
  });
  input.addEventListener("compositionend", () => { timer = setTimeout(answer, 250); });
  form.addEventListener("submit", () => { clearTimeout(timer); request.abort(); });
})();
