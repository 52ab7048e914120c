"use strict";
// A table of columns that can be sorted and filtered, drawn a hundred rows at a time.
// {columns: [{name, levels?: [text], values: [number | null]}]}: a column with levels holds their indices.
function makeGrid(place, grid) {
  const STEP = 100;
  const columns = grid.columns;
  const total = columns.length ? columns[0].values.length : 0;
  const filters = columns.map(() => "");
  let order = null, descending = false, shown = STEP, kept = [];

  const cell = (column, row) => {
    const value = column.values[row];
    return value === null ? null : column.levels ? column.levels[value] : value;
  };
  const compare = (column) => (a, b) => {
    const x = cell(column, a), y = cell(column, b);
    if (x === null || y === null) return (x === null) - (y === null);  // what is missing comes last
    const sign = column.levels ? x.localeCompare(y, "en", {numeric: true})
                                                  : column.values[a] - column.values[b];
    return descending ? -sign : sign;
  };
  // What a filter means: >5, <5, 2..5, a number, or a part of a text.
  const test = (column, text) => {
    const part = text.trim().toLowerCase();
    const number = "([-+0-9.e]+)";
    let match;
    if ((match = part.match(new RegExp("^([<>]=?)\\s*" + number + "$")))) {
      const limit = parseFloat(match[2]);
      return {"<": (v) => v < limit, ">": (v) => v > limit, "<=": (v) => v <= limit, ">=": (v) => v >= limit}[match[1]];
    }
    if ((match = part.match(new RegExp("^" + number + "\\.\\." + number + "$")))) {
      const [low, high] = [parseFloat(match[1]), parseFloat(match[2])];
      return (v) => low <= v && v <= high;
    }
    if (!column.levels) return (v) => String(v).startsWith(part);
    return (v) => v.toLowerCase().includes(part);
  };

  const count = document.createElement("p");
  count.className = "soft count";
  const table = document.createElement("table");
  const head = table.createTHead(), names = head.insertRow(), inputs = head.insertRow(), body = table.createTBody();
  const more = document.createElement("button");
  more.textContent = "show more";
  more.onclick = () => { shown += 10 * STEP; draw(); };

  columns.forEach((column, index) => {
    const th = document.createElement("th"), button = document.createElement("button");
    button.textContent = column.name;
    button.title = "sort by " + column.name;
    button.onclick = () => {
      descending = order === index && !descending;
      order = index;
      update();
    };
    th.append(button);
    names.append(th);
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = column.levels ? "contains" : "> < a..b";
    input.setAttribute("aria-label", "filter " + column.name);
    input.oninput = () => { filters[index] = input.value; update(); };
    const box = document.createElement("th");
    box.append(input);
    inputs.append(box);
  });

  function update() {
    const tests = columns.map((column, index) => filters[index].trim() ? test(column, filters[index]) : null);
    kept = [];
    for (let row = 0; row < total; row++) {
      if (tests.every((good, index) => {
        const value = good && cell(columns[index], row);
        return !good || (value !== null && good(value));
      })) kept.push(row);
    }
    if (order !== null) kept.sort(compare(columns[order]));
    [...names.cells].forEach((th, index) => {
      th.setAttribute("aria-sort", index !== order ? "none" : descending ? "descending" : "ascending");
    });
    shown = STEP;
    draw();
  }

  function draw() {
    body.replaceChildren(...kept.slice(0, shown).map((row) => {
      const tr = document.createElement("tr");
      for (const column of columns) {
        const td = document.createElement("td"), value = cell(column, row);
        td.textContent = value === null ? "" : value;
        if (!column.levels) td.className = "number";
        tr.append(td);
      }
      return tr;
    }));
    count.textContent = kept.length + " of " + total + " rows" + (kept.length > shown ? ", the first " + shown + " shown" : "");
    more.hidden = kept.length <= shown;
  }

  const wide = document.createElement("div");
  wide.className = "wide";
  wide.append(table);
  place.replaceChildren(count, wide, more);
  update();
}
