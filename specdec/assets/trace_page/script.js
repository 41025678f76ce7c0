/* Arrow keys between calls and tokens, and numbers right below their token. */
(() => {
  for (const root of document.querySelectorAll(".specdec:not([data-keys])")) {
    root.dataset.keys = "";
    const all = [...root.querySelectorAll(".sd-lines .sd-token")];
    if (!all.length) continue;
    root.querySelectorAll(".sd-keys").forEach((hint) => { hint.hidden = false; });
    const rows = [...new Set(all.map((token) => token.closest("tr")))];
    const within = (row) => [...row.querySelectorAll(".sd-token")];
    let current = all[0];

    // One stop of the Tab key, which remembers where the reader was.
    const remember = (token) => {
      all.forEach((other) => { other.tabIndex = other === token ? 0 : -1; });
      rows.forEach((row) => row.removeAttribute("aria-current"));
      current = token;
    };
    remember(current);

    const place = (token) => {
      const tip = token.querySelector(".sd-tip"), cell = token.closest("td");
      const room = cell.clientWidth - tip.offsetWidth - 8;
      tip.style.left = `${Math.max(4, Math.min(token.offsetLeft, room))}px`;
      tip.style.top = `${token.offsetTop + token.offsetHeight + 5}px`;
      // A notebook cuts off what is below its cell.
      const end = Math.min(root.getBoundingClientRect().bottom, window.innerHeight);
      const above = token.getBoundingClientRect().top - tip.offsetHeight - 5;
      if (tip.getBoundingClientRect().bottom > end && above > 0) {
        tip.style.top = `${token.offsetTop - tip.offsetHeight - 5}px`;
      }
    };
    root.addEventListener("mouseover", (event) => {
      const token = event.target.closest("td .sd-token");
      if (token) place(token);
    });
    root.addEventListener("focusin", (event) => {
      const token = event.target.closest("td .sd-token");
      if (!token) return;
      remember(token);
      token.closest("tr").setAttribute("aria-current", "step");
      place(token);
    });

    const press = (event) => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const focused = root.contains(document.activeElement) &&
          document.activeElement.closest("td .sd-token");
      const row = current.closest("tr"), at = rows.indexOf(row), line = within(row);
      const first = (index) => rows[index] && within(rows[index])[0];
      const next = {
        ArrowDown: () => (focused ? first(at + 1) : current),
        ArrowUp: () => (focused ? first(at - 1) : current),
        ArrowRight: () => focused && line[line.indexOf(current) + 1],
        ArrowLeft: () => focused && line[line.indexOf(current) - 1],
        Home: () => focused && line[0],
        End: () => focused && line[line.length - 1],
      }[event.key];
      if (event.key === "Escape" && focused) focused.blur();
      else if (!next) return;
      // A notebook would go to its next cell.
      if (focused || next()) { event.preventDefault(); event.stopPropagation(); }
      const token = next && next();
      if (token) {
        token.focus();
        token.scrollIntoView({ block: "nearest" });
      }
    };
    root.addEventListener("keydown", press);
    if (root.classList.contains("sd-page")) {
      document.addEventListener("keydown", (event) => {
        if (event.target === document.body) press(event);
      });
    }
  }
})();
