/* The list of tasks: suggestions of the filter, menus, rows to choose. The page works without it. */
(() => {
  "use strict";
  const root = document.documentElement;
  const field = document.querySelector("input[data-words]");
  const box = document.getElementById("words");
  const say = (text) => { document.getElementById("announce").textContent = text; };

  // A combobox with a list, by the ARIA Authoring Practices: the focus stays in the field.
  let words = null;
  let asked = false;
  let chosen = -1;

  async function loadWords() {
    if (asked) return;
    asked = true;
    try {
      const answer = await fetch(field.dataset.words, { headers: { Accept: "application/json" } });
      if (answer.ok) words = await answer.json();
    } catch { asked = false; }
    if (document.activeElement === field) suggest();
  }

  // The word that the cursor is in: where it begins, its hyphen, its filter, what is typed of a value.
  function readWord() {
    const before = field.value.slice(0, field.selectionStart ?? field.value.length);
    const start = before.match(/(?:[^\s"]|"[^"]*"?)*$/).index;
    const [, sign, name, value] = before.slice(start).match(/^(-?)(?:([A-Za-z_]+):)?(.*)$/s);
    return { start, sign, name, value: value.replace(/"/g, "").toLowerCase() };
  }

  function listSuggestions() {
    const { sign, name, value } = readWord();
    if (!words) return [];
    if (name === undefined) {
      if (!value && !sign && field.value) return [];
      return Object.keys(words).filter((one) => one.startsWith(value)).map((one) => `${sign}${one}:`);
    }
    const quote = (one) => /[\s"]/.test(one) ? `"${one.replace(/"/g, "")}"` : one;
    const fit = (words[name] ?? []).filter((one) => one.toLowerCase().includes(value));
    return fit.filter((one) => one.toLowerCase() !== value).slice(0, 12).map((one) => `${sign}${name}:${quote(one)}`);
  }

  function suggest() {
    const found = listSuggestions();
    chosen = -1;
    box.replaceChildren(...found.map((text, place) => {
      const item = document.createElement("li");
      item.id = `word-${place}`;
      item.role = "option";
      item.ariaSelected = "false";
      item.textContent = text;
      return item;
    }));
    const show = found.length > 0 && document.activeElement === field;
    if (show && box.hidden) say(`${found.length} suggestions`);
    box.hidden = !show;
    field.ariaExpanded = String(show);
    field.removeAttribute("aria-activedescendant");
  }

  function hideWords() {
    box.hidden = true;
    chosen = -1;
    field.ariaExpanded = "false";
    field.removeAttribute("aria-activedescendant");
  }

  function mark(place) {
    const items = [...box.children];
    chosen = (place + items.length) % items.length;
    items.forEach((item, at) => { item.ariaSelected = String(at === chosen); });
    items[chosen].scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", items[chosen].id);
  }

  function take(text) {
    const { start } = readWord();
    const end = field.selectionStart ?? field.value.length;
    const tail = text.endsWith(":") ? "" : " ";
    field.value = field.value.slice(0, start) + text + tail + field.value.slice(end).trimStart();
    const place = start + text.length + tail.length;
    field.setSelectionRange(place, place);
    suggest();
  }

  if (field) {
    field.setAttribute("role", "combobox");
    field.setAttribute("aria-autocomplete", "list");
    field.setAttribute("aria-controls", "words");
    field.ariaExpanded = "false";
    field.addEventListener("focus", () => { loadWords(); suggest(); });
    field.addEventListener("input", suggest);
    field.addEventListener("blur", hideWords);
    field.addEventListener("keydown", (event) => {
      const open = !box.hidden;
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        if (!open) suggest();
        if (box.hidden) return;
        event.preventDefault();
        mark(event.key === "ArrowDown" ? chosen + 1 : (chosen < 0 ? 0 : chosen) - 1);
      } else if (open && chosen >= 0 && (event.key === "Enter" || event.key === "Tab")) {
        event.preventDefault();
        take(box.children[chosen].textContent);
      }
    });
    // A press would take the focus out of the field before the click arrives.
    box.addEventListener("mousedown", (event) => event.preventDefault());
    box.addEventListener("click", (event) => {
      const item = event.target.closest("li");
      if (item) take(item.textContent);
    });
  }

  // Escape closes what is open; of the filter it clears the text, then the page's own script leaves.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const menu = document.querySelector("details.menu[open]");
    if (event.target === field) {
      if (!box.hidden || field.value) event.preventDefault();
      if (!box.hidden) hideWords();
      else field.value = "";
    } else if (menu) {
      menu.open = false;
      menu.querySelector("summary").focus();
    }
  }, true);
  document.addEventListener("click", (event) => {
    for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });

  // Rows that are chosen: by box, by x on the row that the focus is on, with Shift from the last one on.
  const bar = document.getElementById("bulk");
  const chosenIds = new Set();
  let lastId = "";
  const listBoxes = () => [...document.querySelectorAll("#task-list input[name=task]")];

  function choose(box, on, range) {
    const boxes = listBoxes();
    const from = range ? boxes.findIndex((one) => one.value === lastId) : -1;
    const to = boxes.indexOf(box);
    for (const one of from < 0 ? [box] : boxes.slice(Math.min(from, to), Math.max(from, to) + 1)) {
      one.checked = on;
      if (on) chosenIds.add(one.value); else chosenIds.delete(one.value);
    }
    if (!on) bar.elements.all.checked = false;
    lastId = box.value;
    showChosen();
    say(`${chosenIds.size} selected`);
  }

  function chooseAll(on) {
    for (const box of listBoxes()) {
      box.checked = on;
      if (on) chosenIds.add(box.value); else chosenIds.delete(box.value);
    }
    showChosen();
  }

  // After a poll too: the rows may be others, and what can be done to them.
  function showChosen() {
    const list = document.getElementById("task-list");
    const boxes = listBoxes();
    const all = bar.elements.all.checked;
    for (const box of boxes) box.checked = all || chosenIds.has(box.value);
    const on = boxes.filter((box) => box.checked);
    chosenIds.clear();
    for (const box of on) chosenIds.add(box.value);
    bar.hidden = !all && !on.length;
    document.getElementById("picked").textContent = all ? "All selected" : `${on.length} selected`;
    document.getElementById("all-count").textContent = list.dataset.matching;
    const counts = Object.fromEntries((list.dataset.can ?? "").split(" ").map((one) => one.split("=")));
    for (const button of bar.querySelectorAll("button[name=action]")) {
      const some = (box) => ` ${box.dataset.can} `.includes(` ${button.value} `);
      const count = all ? counts[button.value] : String(on.filter(some).length);
      button.lastElementChild.textContent = count;
      button.disabled = count === "0";
      button.title = button.disabled ? "None of them is in a state for it." : "";
    }
    const head = document.getElementById("all-rows");
    if (head) {
      head.checked = on.length > 0 && on.length === boxes.length;
      head.indeterminate = on.length > 0 && on.length < boxes.length;
    }
  }

  if (bar) {
    document.addEventListener("click", (event) => {
      if (event.target.matches("#task-list input[name=task]")) choose(event.target, event.target.checked, event.shiftKey);
      else if (event.target.id === "all-rows") {
        if (!event.target.checked) bar.elements.all.checked = false;
        chooseAll(event.target.checked);
      }
    });
    bar.elements.all.addEventListener("change", (event) => chooseAll(event.target.checked));
    bar.addEventListener("reset", () => setTimeout(() => chooseAll(false)));
    document.addEventListener("htmx:after:swap", showChosen);
    window.addEventListener("pageshow", showChosen);
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("input:not([type=checkbox]), textarea, select");
      if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat || root.dataset.keys === "off") return;
      if (event.key.toLowerCase() !== "x" || document.getElementById("dialog")?.open) return;
      const box = document.activeElement.closest("#task-list tr")?.querySelector("input[name=task]");
      if (box) choose(box, event.shiftKey || !box.checked, event.shiftKey);
    });
    showChosen();
  }
})();
