/* What HTML can't do alone: hold polls back, open dialogs, tick times. Every page works without it. */
(() => {
  "use strict";
  const POLLED = "[hx-trigger^='every']";
  const find = (id) => document.getElementById(id);
  const root = document.documentElement;
  const say = (text) => { find("announce").textContent = text; };
  let paused = false;
  let signedOut = false;
  let failures = 0;
  let silentUntil = 0;

  const isPoll = (element) => element.matches(POLLED);
  const pollNow = () => document.querySelectorAll(POLLED).forEach((part) => htmx.trigger(part, "every"));

  function showLive() {
    const live = find("live");
    if (!live) return;
    live.hidden = !document.querySelector(POLLED);
    live.classList.toggle("is-off", paused || signedOut || failures > 0);
    root.toggleAttribute("data-stale", failures >= 3);
  }

  function setLiveText(text) {
    const live = find("live-text");
    if (live && live.textContent !== text) live.textContent = text;
  }

  // A hidden tab, a pause, a lost session and a server in trouble each hold the polls back.
  document.addEventListener("htmx:before:request", (event) => {
    const { ctx } = event.detail;
    ctx.polls = isPoll(ctx.sourceElement);  // by its answer it may have polled for the last time
    if (!ctx.polls) return;
    const late = Date.now() < silentUntil;
    const read = !following && ctx.sourceElement.querySelector("[data-follow]");
    if (document.hidden || signedOut || late || read) event.preventDefault();
  });
  // While updates are paused the page is still asked for, so that the banner knows how much is held back.
  let heldBack = 0;
  document.addEventListener("htmx:before:swap", (event) => {
    const part = event.detail.ctx.sourceElement;
    // What is shown for the first time is no change.
    if (!paused || !isPoll(part) || !part.getAttribute("hx-ptag")) return;
    event.preventDefault();
    heldBack += event.detail.ctx.response.status === 200 ? 1 : 0;
    showPaused();
  });
  function showPaused() {
    find("paused").hidden = !paused;
    find("paused").querySelector("span").textContent = heldBack ? `${heldBack} ${heldBack === 1 ? "change is" : "changes are"} held back` : "nothing has changed";
  }
  function pauseUpdates() {
    paused = !paused;
    find("live-pause").setAttribute("aria-pressed", String(paused));
    setLiveText(paused ? "Updates paused" : "Live");
    if (!paused && heldBack) document.querySelectorAll(POLLED).forEach((part) => { if (part._htmx) part._htmx.ptag = ""; });
    heldBack = 0;
    showPaused();
    showLive();
    if (!paused) pollNow();
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    if (signedOut && find("other-user").hidden) resume(false);
    else pollNow();
  });

  // What was asked before something was sent may be older than what that brought: it is left unread,
  // its tag too, so that the next poll asks again.
  let sentAt = 0;
  document.addEventListener("htmx:before:request", ({ detail: { ctx } }) => { ctx.askedAt = performance.now(); });
  document.addEventListener("htmx:before:response", (event) => {
    const { ctx } = event.detail;
    if (ctx.request.method !== "GET") sentAt = performance.now();
    else if (isPoll(ctx.sourceElement) && ctx.askedAt < sentAt) event.preventDefault();
  });

  document.addEventListener("htmx:after:request", (event) => {
    const { status } = event.detail.ctx.response;
    const sent = event.detail.ctx.request.method !== "GET";
    if (status === 401) {
      signedOut = true;
      leaveForLogin();
    } else if (status === 412) {
      showStranger();
    } else if (status === 403 && sent && !event.detail.ctx.response.headers.get("X-Request-ID")) { // no view was asked
      resume(true);
    } else if (status >= 500) {
      noteFailure();
    } else if (failures) {
      failures = 0;
      silentUntil = 0;
      setLiveText("Live");
    }
    if (sent && status < 400 && find("send-again")) find("send-again").hidden = true;
    if (status === 403) say("You may not do that.");
    if (status === 404) say("It is no longer there.");
    showLive();
  });
  // Whom the page was made for goes with every request, so that nobody acts as somebody who has
  // signed in in another tab since.
  document.addEventListener("htmx:config:request", (event) => {
    if (root.dataset.user) event.detail.ctx.request.headers["X-Page-User"] = root.dataset.user;
  });
  function showStranger() {
    signedOut = true;
    find("signed-out").hidden = true;
    find("other-user").hidden = false;
    showLive();
  }
  // A sign-in makes the tokens of older forms void. Whoever is the same person again goes on with new
  // ones; what was refused is sent by them, not by us.
  async function resume(refused) {
    const answer = await fetch(location.href);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const token = page.querySelector("[name=csrfmiddlewaretoken]")?.value;
    const { user } = page.documentElement.dataset;
    if (!user) return refused && leaveForLogin();
    if (user !== root.dataset.user) return showStranger();
    for (const field of document.querySelectorAll("[name=csrfmiddlewaretoken]")) field.value = token;
    find("send-again").hidden = !refused;
    find("signed-out").hidden = true;
    signedOut = false;
    showLive();
    pollNow();
  }
  // What a browser kept of a page is loaded anew, unless something typed would be lost.
  addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    if (isAnyTyped()) resume(false);
    else location.reload();
  });

  // The session is over: to the sign-in page and back here, unless that would lose what is typed.
  function isAnyTyped() {
    const isTyped = (field) => field.type === "checkbox" || field.type === "radio"
      ? field.checked !== field.defaultChecked
      : field.type !== "hidden" && field.type !== "search" && field.value !== field.defaultValue;
    return [...document.querySelectorAll("main input, main textarea, #dialog input, #dialog textarea")].some(isTyped);
  }
  function leaveForLogin() {
    const login = find("signed-out").querySelector("a");
    login.search = new URLSearchParams({ ended: 1, next: location.pathname + location.search });
    if (isAnyTyped()) {
      find("signed-out").hidden = false;
    } else {
      location.assign(login.href);
    }
  }
  document.addEventListener("htmx:error", () => { noteFailure(); showLive(); });

  // What a part knows of the open questions is true in the navigation too, which nothing polls.
  function showWaiting() {
    const waiting = document.querySelector("[data-waiting]")?.dataset.waiting;
    for (const badge of waiting === undefined ? [] : document.querySelectorAll(".count.you")) {
      badge.firstElementChild.textContent = waiting;
      badge.hidden = waiting === "0";
    }
  }

  function noteFailure() {
    failures += 1;
    if (failures >= 3) silentUntil = Date.now() + 30_000;
    if (failures === 1) setLiveText(`Last updated ${sayClock(serverNow())}, retrying`);
  }

  // A log stays at its end. Who scrolls up reads in peace: it stands still until they are back there.
  let following = true;
  function showEnd() {
    const box = document.querySelector("[data-follow]");
    if (box && following) box.scrollTop = box.scrollHeight;
  }
  document.addEventListener("scroll", ({ target: box }) => {
    if (!box.matches?.("[data-follow]")) return;
    following = box.scrollHeight - box.scrollTop - box.clientHeight < 24;
    find("log-held").hidden = following;
  }, true);

  // Dialogs: a form loaded into the one <dialog>. Without script its link opens it as a page.
  document.addEventListener("htmx:after:swap", (event) => {
    const dialog = find("dialog");
    if (dialog && dialog.childElementCount && !dialog.open) {
      dialog.showModal();
      dialog.scrollTop = 0; // the focus is at its end, what it is about at its beginning
    }
    root.dataset.theme = find("theme")?.dataset.theme ?? root.dataset.theme;
    showEnd();
    showWaiting();
    showLive();
    focusTimes();
    keepToasts();
    tellState(event);
  });
  document.addEventListener("done", () => find("dialog").close());
  document.addEventListener("click", (event) => {
    const closer = event.target.closest("[data-close]");
    if (closer && closer.closest("dialog")) {
      event.preventDefault();
      closer.closest("dialog").close();
    }
    if (event.target.closest("#live-pause, [data-resume]")) pauseUpdates();
    if (event.target.closest("[data-dismiss]")) event.target.closest(".notice").remove();
  });

  // A toast says what was done. Good news goes by itself, unless somebody is at it; bad news stays.
  function keepToasts() {
    for (const toast of document.querySelectorAll("#notices .notice:not(:has([data-dismiss]))")) {
      const button = toast.appendChild(document.createElement("button"));
      Object.assign(button, { type: "button", className: "copy", textContent: "×", ariaLabel: "Dismiss" });
      button.dataset.dismiss = "";
      const leave = () => { if (toast.matches(":hover, :focus-within")) setTimeout(leave, 2000); else toast.remove(); };
      if (toast.getAttribute("role") === "status") setTimeout(leave, 8000);
    }
  }
  // The live region tells of a change of state of what the page is about, and of nothing else.
  let told;
  function tellState(event) {
    const now = document.querySelector("#task-vitals, #state")?.dataset.status;
    const own = event && !event.detail.ctx.polls; // its toast says it
    if (told && now && told !== now && !own) say(`Now ${now.replace("_", " ")}.`);
    told = now;
  }

  // A link that shows another part of the same page leaves its address, to be sent on or loaded anew.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-place]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) history.replaceState(history.state, "", link.href);
  });

  // The button of a dialog names what is chosen in it.
  document.addEventListener("change", (event) => {
    const button = event.target.form?.querySelector("button[data-names]");
    if (button?.dataset.names === event.target.name) button.textContent = `${button.dataset.verb} ${event.target.value}`;
  });

  function saySpan(seconds) {
    const whole = Math.floor(seconds);
    const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
    const pad = (number) => String(number).padStart(2, "0");
    if (days) return `${days} d ${hours} h`;
    if (hours) return `${hours} h ${pad(minutes)} m`;
    return minutes ? `${minutes} m ${pad(whole % 60)} s` : `${whole} s`;
  }

  // The page's clock is the server's: <html data-now> and the time since it arrived. A browser whose
  // clock is set, or that slept, is set right by the next answer.
  let skew = Date.parse(root.dataset.now || new Date().toISOString()) - Date.now();
  const serverNow = () => Date.now() + skew;
  document.addEventListener("htmx:after:request", (event) => {
    const said = Date.parse(event.detail.ctx.response?.headers?.get("Date") ?? "") + 500;
    if (Math.abs(said - serverNow()) > 3000) skew = said - Date.now();
  });
  function sayClock(at) {
    const { zone, hours } = root.dataset;
    const how = { hour: "numeric", minute: "2-digit", second: "2-digit", hourCycle: hours === "12" ? "h12" : "h23" };
    return new Intl.DateTimeFormat("en-GB", { ...how, timeZone: zone || "UTC" }).format(at);
  }
  function sayDistance(seconds) {
    return seconds > -1 ? `${saySpan(Math.max(0, seconds))} ago` : `in ${saySpan(-seconds)}`;
  }
  function tick() {
    if (document.hidden) return;
    if (!paused) moveNow();
    for (const time of document.querySelectorAll("time[data-time]")) {
      const seconds = (serverNow() - Date.parse(time.dateTime)) / 1000;
      if (time.dataset.time === "left") time.textContent = seconds < 0 ? `${saySpan(-seconds)} left` : "expired, checking";
      else if (time.dataset.time === "for") time.textContent = saySpan(Math.max(0, seconds));
      else time.textContent = sayDistance(seconds);
    }
  }

  // The other form of a time, with its zone: under the pointer, with the focus, after a tap. A second
  // click, or Enter, copies it as ISO 8601. What stands in a link or button leaves those their click.
  let tipped = null;
  let ready = false;
  const LINKED = ":is(a, button, summary, label) time";
  const focusTimes = () => document.querySelectorAll("time[datetime]").forEach((time) => { if (!time.matches(LINKED)) time.tabIndex = 0; });
  function showTip(time) {
    const tip = find("tip");
    if (!tip || !time || time === tipped) return;
    hideTip();
    if (time.title) time.dataset.exact = time.title;
    time.removeAttribute("title");
    const far = time.dataset.time ? "" : ` · ${sayDistance((serverNow() - Date.parse(time.dateTime)) / 1000)}`;
    tip.textContent = (time.dataset.exact ?? time.dateTime) + far + (time.matches(LINKED) ? "" : " · click or Enter copies");
    tip.showPopover();
    const [box, room] = [time.getBoundingClientRect(), tip.getBoundingClientRect()];
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - room.width - 8))}px`;
    tip.style.top = `${box.bottom + room.height + 8 < innerHeight ? box.bottom + 4 : box.top - room.height - 4}px`;
    time.setAttribute("aria-describedby", "tip");
    tipped = time;
  }
  function hideTip() {
    if (!tipped) return;
    find("tip").hidePopover();
    tipped.removeAttribute("aria-describedby");
    tipped = null;
  }
  document.addEventListener("pointerover", ({ target }) => {
    const time = target.closest?.("time[datetime]");
    if (time) showTip(time);
    else if (tipped && !target.closest?.("#tip") && tipped !== document.activeElement) hideTip();
  });
  document.addEventListener("focusin", ({ target }) => {
    hideTip();
    showTip(target.matches("time[datetime]") ? target : target.querySelector?.(":scope > time"));
  });
  document.addEventListener("focusout", hideTip);
  document.addEventListener("scroll", hideTip, true);
  document.addEventListener("pointerdown", ({ target }) => { ready = Boolean(tipped) && target.closest?.("time[datetime]") === tipped; }, true);
  document.addEventListener("click", ({ target }) => {
    const time = target.closest?.("time[datetime]");
    if (!time || time.matches(LINKED)) return;
    if (ready) copyText(time.dateTime, time);
    else showTip(time);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
    if (event.key === "Enter" && event.target.matches("time[datetime]")) copyText(event.target.dateTime, event.target);
  });

  // Between two answers the line of now goes on at the pace of its picture, what is under way with it.
  function moveNow() {
    const picture = document.querySelector("table.wf[data-at]");
    if (!picture) return;
    const { at, now, pace } = picture.dataset;
    const passed = Math.max(0, (serverNow() - Date.parse(at)) / 1000);
    const place = Math.max(parseFloat(now), Math.min(97, parseFloat(now) + passed * pace)); // its word keeps its room
    for (const line of picture.querySelectorAll(".nowl")) for (const end of ["x1", "x2"]) line.setAttribute(end, `${place}%`);
    picture.querySelector(".nowt").setAttribute("x", `${place}%`);
    for (const bar of picture.querySelectorAll(".grows")) {
      const width = place - parseFloat(bar.getAttribute("x"));
      if (width > parseFloat(bar.getAttribute("width"))) bar.setAttribute("width", `${width}%`);
    }
  }

  // The timeline by keyboard: arrows, Home and End move between its rows and a step's units, + - 0 zoom.
  document.addEventListener("keydown", (event) => {
    const picture = find("task-timeline");
    if (!picture || keysOff() || find("dialog")?.open || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    const zoom = picture.querySelector(`[data-zoom="${CSS.escape(event.key === "=" ? "+" : event.key)}"]`);
    if (zoom && !event.repeat) zoom.click();
    const rows = [...picture.querySelectorAll("tbody th a:not(.x)")];
    const here = rows.indexOf(event.target.closest("#task-timeline tbody tr")?.querySelector("th a:not(.x)"));
    const isSub = (at) => rows[at]?.closest("tr").classList.contains("sub");
    const moves = { ArrowUp: -1, ArrowDown: 1, Home: -rows.length, End: rows.length, ArrowLeft: -1, ArrowRight: 1 };
    if (here < 0 || !(event.key in moves)) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(rows.length - 1, here + moves[event.key]));
    if (!/Left|Right/.test(event.key)) rows[to].focus();
    else if (isSub(Math.max(here, to))) rows[to].focus();
    else document.querySelector(`#task-panel [data-unit="${event.key}"]`)?.click();
  });

  // `g` and a letter go places. First of all listeners: its second letter means nothing else, and
  // the switch in the settings holds every single key back. Never while typing.
  const keysOff = () => root.dataset.keys === "off";
  let goUntil = 0;
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && typing?.type === "search" && !typing.value && typing.ariaExpanded !== "true") typing.blur();
    if (typing || event.ctrlKey || event.metaKey || event.altKey || event.key.length > 1) return;
    const going = Date.now() < goUntil;
    goUntil = 0;
    if (keysOff() || going) event.stopImmediatePropagation();
    if (keysOff() || document.querySelector("dialog[open]")) return;
    if (event.key === "?") showHelp();
    else if (going) document.querySelector(`.side [data-go="${CSS.escape(event.key)}"]`)?.click();
    else if (event.key === "g") goUntil = Date.now() + 1500;
    else if (event.key === "l") find("live-pause")?.click();
    else if (event.key === "t" && !event.repeat) document.querySelector("#theme button")?.click();
    else if (event.key === "j" || event.key === "k") moveRow(event.key === "j" ? 1 : -1);
    else if (event.key === "[" || event.key === "]") document.querySelector(`#around [aria-keyshortcuts="${event.key}"][href]`)?.click();
    else if (event.key === "/" && document.querySelector("input[type=search]")) {
      event.preventDefault();
      document.querySelector("input[type=search]").focus();
    } else if (!event.repeat) document.querySelector(`.acts [data-key="${CSS.escape(event.key)}"]`)?.click();
  }, true);

  function showHelp() {
    const legend = document.querySelector('.side [data-go="?"]');
    if (legend) htmx.ajax("GET", `${legend.pathname}?at=${encodeURIComponent(location.pathname)}`, { target: "#dialog", swap: "innerHTML" });
  }

  // The palette: its field keeps the focus, the arrows choose. What this page can do stands first.
  const jump = (step) => {
    const options = [...document.querySelectorAll("#palette-found [role=option]")];
    const here = options.findIndex((one) => one.ariaSelected === "true");
    options[here]?.setAttribute("aria-selected", "false");
    const next = options[(here + step + options.length) % options.length];
    next?.setAttribute("aria-selected", "true");
    next?.scrollIntoView({ block: "nearest" });
    if (next) find("palette-field").setAttribute("aria-activedescendant", next.id);
  };
  function openPalette() {
    const palette = find("palette");
    if (!palette || document.querySelector("dialog[open]")) return;
    palette.showModal();
    const field = find("palette-field");
    field.value = "";
    field.focus();
    htmx.trigger(field, "find");
  }
  function offerActions() {
    const wanted = find("palette-field").value.trim().toLowerCase();
    const group = document.createElement("div");
    group.append(Object.assign(document.createElement("span"), { className: "dim", textContent: "On this page" }));
    Object.assign(group, { role: "group", ariaLabel: "On this page" });
    for (const deed of document.querySelectorAll("main .acts :is(a, button), .live button")) {
      const name = [...deed.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join(" ");
      if (!name || deed.disabled || !deed.offsetParent || !name.toLowerCase().includes(wanted)) continue;
      const option = Object.assign(document.createElement("a"), { role: "option", tabIndex: -1, ariaSelected: "false", textContent: name });
      option.id = `jump-here-${group.childElementCount}`;
      option.addEventListener("click", () => { find("palette").close(); deed.focus(); deed.click(); });
      group.append(option);
    }
    if (group.childElementCount > 1) find("palette-found").prepend(group);
  }
  document.addEventListener("htmx:before:swap", (event) => {
    // It names an option that goes now.
    if (event.detail.ctx.sourceElement.id === "palette-field") find("palette-field").removeAttribute("aria-activedescendant");
  });
  document.addEventListener("htmx:after:swap", (event) => {
    if (event.detail.ctx.sourceElement.id !== "palette-field") return;
    offerActions();
    jump(1);
  });
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#palette-open, [data-palette]") || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    openPalette();
  });
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      if (find("palette")?.open) find("palette").close();
      else openPalette();
    }
    if (event.target.id !== "palette-field") return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") jump(event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter") document.querySelector("#palette-found [aria-selected=true]")?.click();
    else return;
    event.preventDefault();
  });

  function moveRow(step) {
    const rows = [...document.querySelectorAll("a[data-row]")].filter((row) => row.offsetParent);
    const here = rows.indexOf(document.activeElement);
    const from = here < 0 ? rows.findIndex((row) => row.ariaCurrent) : here;
    rows[from < 0 ? (step > 0 ? 0 : rows.length - 1) : from + step]?.focus();
  }

  // A task's page knows the list that it was opened from: its neighbours there, and the way back.
  document.addEventListener("click", (event) => {
    if (!event.target.closest("a[data-row]")) return;
    const rows = [...document.querySelectorAll("a[data-row]")].map((row) => row.pathname);
    sessionStorage.setItem("longwatch-list", JSON.stringify({ rows, back: location.pathname + location.search }));
  });
  function showAround() {
    const around = find("around");
    const list = JSON.parse(sessionStorage.getItem("longwatch-list") || "null");
    const place = around && list ? list.rows.indexOf(location.pathname) : -1;
    if (place < 0 || !around.hidden) return; // the page's address names its list
    around.hidden = false;
    around.firstElementChild.textContent = `${place + 1} of ${list.rows.length}`;
    for (const [rel, path] of [["prev", list.rows[place - 1]], ["next", list.rows[place + 1]]]) {
      if (path) around.querySelector(`[rel=${rel}]`).href = path;
    }
    find("back").href = list.back;
  }

  // Copies. The clipboard's own interface is missing where a page comes over plain http.
  async function copyText(text, from) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = document.body.appendChild(document.createElement("textarea"));
      field.value = text;
      field.select();
      document.execCommand("copy");
      field.remove();
      from.focus();
    }
    say("Copied.");
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    await copyText(button.dataset.copy ?? find(button.dataset.copies).textContent, button);
    button.classList.add("is-ok");
    button.addEventListener("blur", () => button.classList.remove("is-ok"), { once: true });
  });

  // A letter answers a request. One that needs words opens the comment; what can't be undone is only
  // focused, so that Enter, and then a dialog, stand between the letter and the deed.
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, textarea, select, [contenteditable]");
    if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && !find("dialog")?.open) answerByKey(event);
  });
  function answerByKey(event) {
    const key = `button[data-key="${CSS.escape(event.key)}"]`;
    const button = document.querySelector(`.decide ${key}`) || document.querySelector(`#approval-queue ${key}`);
    if (!button || button.disabled || event.repeat || event.shiftKey) return;
    event.preventDefault();
    const words = button.dataset.needs && find(button.dataset.needs);
    if (words && !words.value.trim()) {
      words.focus();
      say(`Say why, then press ${button.firstElementChild.nextSibling.textContent}.`);
    } else if ("focus" in button.dataset) button.focus();
    else button.click();
  }

  // An answer leads to the next question, whose buttons stand where the last one's stood: for a moment
  // they take no press that was meant for that one.
  const ANSWERED = "longwatch-answered";
  document.addEventListener("submit", (event) => {
    if (event.target.getAttribute("action")?.includes("/answer/")) sessionStorage.setItem(ANSWERED, String(Date.now()));
  }, true);
  const quietUntil = Date.now() - Number(sessionStorage.getItem(ANSWERED)) < 5_000 ? Date.now() + 700 : 0;
  sessionStorage.removeItem(ANSWERED);
  document.addEventListener("click", (event) => {
    if (Date.now() < quietUntil && event.target.closest(".decide button")) {
      event.preventDefault();
      event.stopImmediatePropagation();
    }
  }, true);

  // Files that were looked at: marked in this tab, folded, counted; the form carries the marks.
  const listMarks = () => [...document.querySelectorAll("input[name=seen]")];
  const seenKey = () => find("seen-count")?.dataset.key;
  function countSeen() {
    const [marks, box] = [listMarks(), find("seen-count")];
    if (box && marks.length) box.textContent = `${marks.filter((mark) => mark.checked).length} of ${marks.length} seen`;
  }
  document.addEventListener("change", (event) => {
    if (event.target.name !== "seen") return;
    if (event.target.checked) event.target.closest(".fitem").querySelector("details").open = false;
    sessionStorage.setItem(seenKey(), listMarks().filter((mark) => mark.checked).map((mark) => mark.value).join());
    countSeen();
  });
  function restoreSeen() {
    const kept = (seenKey() && sessionStorage.getItem(seenKey()) || "").split(",");
    for (const mark of listMarks()) mark.checked ||= kept.includes(mark.value);
    countSeen();
  }

  // Once, while no zone is chosen: the browser's is offered, not taken.
  function offerZone() {
    const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
    for (const place of [find("zone-guess"), find("zone-offer")]) {
      if (!place || !zone || zone === (root.dataset.zone || "UTC")) continue;
      place.hidden = false;
      place.querySelector("b").textContent = zone;
      if (place.matches("form")) place.querySelector("button").value = zone;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    root.dataset.script = "on";
    if (document.body.matches(".bare")) for (const key of Object.keys(sessionStorage)) if (/^(longwatch|seen)-/.test(key)) sessionStorage.removeItem(key);
    offerZone();
    focusTimes();
    keepToasts();
    tellState();
    showAround();
    restoreSeen();
    showEnd();
    find("dialog")?.addEventListener("close", (event) => event.target.replaceChildren());
    showLive();
    tick();
    setInterval(tick, 1000);
  });

  // The list of tasks: suggestions of the filter, menus, rows to choose.
  const field = document.querySelector("input[data-words]");
  const box = find("words");

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
  const bar = document.querySelector("form#bulk");
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
    const list = find("task-list");
    const boxes = listBoxes();
    const all = bar.elements.all.checked;
    for (const box of boxes) box.checked = all || chosenIds.has(box.value);
    const on = boxes.filter((box) => box.checked);
    chosenIds.clear();
    for (const box of on) chosenIds.add(box.value);
    bar.hidden = !all && !on.length;
    find("picked").textContent = all ? "All selected" : `${on.length} selected`;
    find("all-count").textContent = list.dataset.matching;
    const counts = Object.fromEntries((list.dataset.can ?? "").split(" ").map((one) => one.split("=")));
    for (const button of bar.querySelectorAll("button[name=action]")) {
      const some = (box) => ` ${box.dataset.can} `.includes(` ${button.value} `);
      const count = all ? counts[button.value] : String(on.filter(some).length);
      button.lastElementChild.textContent = count;
      button.disabled = count === "0";
      button.title = button.disabled ? "None of them is in a state for it." : "";
    }
    const head = find("all-rows");
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
      if (event.key.toLowerCase() !== "x" || find("dialog")?.open) return;
      const box = document.activeElement.closest("#task-list tr")?.querySelector("input[name=task]");
      if (box) choose(box, event.shiftKey || !box.checked, event.shiftKey);
    });
    showChosen();
  }
})();
