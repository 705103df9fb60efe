"use strict";
// Sort tables, offer CSV, show the values of charts on hover, switch their lines, and draw what can be turned.
(() => {

  // Tables

  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.value;
    if (value !== undefined) return Number(value);
    return cell.classList.contains("number") ? NaN : cell.textContent;
  };
  const isMissing = (value) => Number.isNaN(value) || value === "";
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

  const sortTable = (header) => {
    const body = header.closest("table").tBodies[0], column = header.cellIndex;
    const sign = header.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const cell of header.parentNode.cells) cell.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    rows.sort(([a], [b]) => isMissing(a) - isMissing(b) || (isMissing(a) ? 0 : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
  };
  for (const header of document.querySelectorAll("th")) header.onclick = () => sortTable(header);

  // Downloads: tables as they are sorted now, and the points of charts

  const element = (name, fields) => Object.assign(document.createElement(name), fields);
  const cellOf = (value) => {
    let text = String(value ?? "");
    if (typeof value !== "number" && /^[=+@\t\r-]/.test(text)) text = `'${text}`; // a spreadsheet would take it for a formula
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const download = (name, rows) => {
    const text = rows.map((row) => row.map(cellOf).join(",") + "\r\n").join("");
    const href = URL.createObjectURL(new Blob(["\ufeff", text], { type: "text/csv" })); // the mark: Excel reads UTF-8
    element("a", { href, download: `${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "data"}.csv` }).click();
    setTimeout(() => URL.revokeObjectURL(href), 60000);
  };
  const addDownload = (node, place, name, rows) =>
    node[place](element("button", { type: "button", className: "csv", textContent: "CSV", title: "Download as CSV", onclick: () => download(name(), rows()) }));
  const valueOf = (cell) => (cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value));
  for (const table of document.querySelectorAll(".table")) {
    const title = () => `${table.closest("section")?.querySelector("h2").textContent ?? document.title} ${table.previousElementSibling?.matches(".caption") ? table.previousElementSibling.textContent : ""}`;
    addDownload(table, "after", title, () => [...table.querySelectorAll("tr")].map((row) => [...row.cells].map(valueOf)));
  }

  // Values on hover

  const tip = document.body.appendChild(element("div", { className: "tip", hidden: true }));
  const short = (value) => (typeof value === "number" ? String(Number(value.toPrecision(5))) : "–");
  const showTip = (event, ...lines) => {
    tip.replaceChildren(...lines.map(([text, color]) => {
      const line = element("div", { textContent: text });
      line.style.color = color ?? "";
      return line;
    }));
    tip.hidden = !lines.length;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, event.clientX + 14 + width < innerWidth ? event.clientX + 14 : event.clientX - width - 14)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - height - 4))}px`;
  };
  const onHover = (node, show) => {
    for (const name of ["pointermove", "pointerdown"]) node.addEventListener(name, show);
    node.addEventListener("pointerleave", () => (tip.hidden = true));
  };
  // The point of an event in the coordinates of an element
  const within = (node, event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(node.getScreenCTM().inverse());
  const nearest = (numbers, wanted) => {
    let best = 0;
    numbers.forEach((number, i) => { if (Math.abs(number - wanted) < Math.abs(numbers[best] - wanted)) best = i; });
    return best;
  };

  // Titles inside a picture: the browser would show them beside ours.
  const takeTitles = (svg) => {
    for (const title of svg.querySelectorAll("title")) {
      const owner = title.parentNode;
      if (owner.tagName === "svg") owner.setAttribute("aria-label", title.textContent); // of a picture or a panel
      else owner.dataset.tip = title.textContent;
      title.remove();
    }
  };
  const hint = (event) => event.target.closest?.("[data-tip]")?.dataset.tip;

  const readLines = (svg, lines) => {
    const marks = [...svg.querySelectorAll("polyline[data-tip], circle[data-tip]")];
    return [...new Set(marks.map((mark) => mark.parentNode))].map((plot) => {
      const bands = [...plot.querySelectorAll("polygon")];
      let key = plot.nextElementSibling;
      const found = marks.flatMap((mark, i) => {
        if (mark.parentNode !== plot) return [];
        const line = lines[i], nodes = line.spread.length ? [mark, bands.shift()] : [mark];
        const number = lines.findIndex((other) => other.name === line.name); // panels share their lines
        for (const node of nodes) node.dataset.line = number;
        for (let k = 0; k < 2 && key; k++, key = key.nextElementSibling) key.dataset.key = number;
        const x = mark.points ? [...mark.points].map((point) => point.x) : [mark.cx.baseVal.value];
        return [{ ...line, mark, pixels: x }];
      });
      const rule = plot.appendChild(document.createElementNS(plot.namespaceURI, "path"));
      rule.setAttribute("class", "rule");
      return { plot, rule, lines: found };
    });
  };
  const linesAt = (plots, event) => {
    for (const { plot, rule, lines } of plots) {
      const box = plot.viewBox.baseVal, place = within(lines[0].mark, event);
      const inside = place.x >= box.x && place.x <= box.x + box.width && place.y >= box.y && place.y <= box.y + box.height;
      const shown = lines.filter((line) => !line.mark.classList.contains("off"));
      rule.setAttribute("d", "");
      if (!inside || !shown.length) continue;
      const at = shown.map((line) => nearest(line.pixels, place.x));
      const distance = shown.map((line, k) => Math.abs(line.pixels[at[k]] - place.x));
      const best = distance.indexOf(Math.min(...distance)), x = shown[best].pixels[at[best]];
      rule.setAttribute("d", `M${x} ${box.y}V${box.y + box.height}`);
      const rows = shown.flatMap((line, k) => {
        if (Math.abs(line.pixels[at[k]] - x) > 1) return [];
        const spread = line.spread.length ? ` ± ${short(line.spread[at[k]])}` : "";
        const { stroke, fill } = getComputedStyle(line.mark);
        return [[`${line.name}: ${short(line.y[at[k]])}${spread}`, stroke === "none" ? fill : stroke]];
      });
      return [[`${shown[best].xlabel} ${short(shown[best].x[at[best]])}`], ...rows.slice(0, 12)];
    }
    return [];
  };
  const gridsAt = (svg, grids, event) => {
    const place = within(svg, event);
    for (const { left, top, size, x, y, values } of grids) {
      const across = (place.x - left) / size, up = 1 - (place.y - top) / size;
      if (Math.min(across, up) < 0 || Math.max(across, up) > 1) continue;
      const i = nearest(x, x[0] + across * (x.at(-1) - x[0])), j = nearest(y, y[0] + up * (y.at(-1) - y[0]));
      return [[`${short(x[i])}, ${short(y[j])}: ${short(values[i][j])}`]];
    }
    return [];
  };

  // Legends

  const press = (key, change) => {
    key.setAttribute("aria-pressed", key.getAttribute("aria-pressed") === "false");
    change(key.getAttribute("aria-pressed") === "true");
  };
  const addKeys = (svg) => {
    const keys = [...svg.querySelectorAll("[data-key]")];
    for (const key of keys) {
      const number = key.dataset.key, same = keys.filter((other) => other.dataset.key === number);
      const change = (on) => {
        for (const other of same) other.setAttribute("aria-pressed", on);
        for (const node of svg.querySelectorAll(`[data-line="${number}"]`)) node.classList.toggle("off", !on);
      };
      key.setAttribute("aria-pressed", "true");
      key.onclick = () => press(key, change);
      if (key.tagName === "path" || key.tagName === "circle") continue; // of a line's sample and its name, the name
      key.setAttribute("role", "button");
      key.setAttribute("tabindex", "0");
      key.onkeydown = (event) => /^( |Enter)$/.test(event.key) && (event.preventDefault(), press(key, change));
    }
    if (keys.length) svg.setAttribute("role", "group");
  };

  // Scenes: a canvas to be turned by the pointer or the arrow keys; far things first, as in scene.py

  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const circle = (f) => Array.from({ length: 61 }, (_, i) => f((i * Math.PI) / 30));
  const WIRES = [-60, -30, 0, 30, 60].map((d) => (d * Math.PI) / 180).map((a) => circle((t) => [Math.cos(a) * Math.cos(t), Math.cos(a) * Math.sin(t), Math.sin(a)]))
    .concat([0, 30, 60, 90, 120, 150].map((d) => (d * Math.PI) / 180).map((a) => circle((t) => [Math.cos(t) * Math.cos(a), Math.cos(t) * Math.sin(a), Math.sin(t)])));
  const AXES = [[1, 0, 0], [0, 1, 0], [0, 0, 1]].map((end) => [end.map((x) => -x), end]);
  const SHAPES = [ // of the dots of series with the same colour
    (pen, x, y, r) => pen.arc(x, y, r, 0, 7),
    (pen, x, y, r) => pen.rect(x - r, y - r, 2 * r, 2 * r),
    (pen, x, y, r) => [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]].forEach(([u, v]) => pen.lineTo(x + u * r, y + v * r)),
  ];

  const addScene = (plot, svg, scene) => {
    const canvas = element("canvas", { tabIndex: 0 }), pen = canvas.getContext("2d");
    const view = { turn: scene.turn, tilt: scene.tilt }, named = new Map();
    let dots = [];
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${svg.getAttribute("aria-label")}. Drag or press arrow keys to turn it.`);
    for (const series of scene.series) {
      if (series.in_legend) named.set(series.name, series);
      series.on = () => named.get(series.name)?.is_shown ?? series.is_shown;
    }

    const draw = () => {
      const size = canvas.clientWidth, high = size * (scene.surface ? 0.8 : 0.95), ratio = devicePixelRatio || 1, unit = size * 0.44;
      if (!size) return;
      Object.assign(canvas, { width: size * ratio, height: high * ratio });
      pen.setTransform(ratio, 0, 0, ratio, (size / 2) * ratio, (high / 2) * ratio);
      const [turn, tilt] = [view.turn, view.tilt].map((degrees) => (degrees * Math.PI) / 180);
      const [ct, st, cp, sp] = [Math.cos(turn), Math.sin(turn), Math.cos(tilt), Math.sin(tilt)];
      const seen = ([x, y, z]) => {
        const far = x * st + y * ct;
        return [unit * (x * ct - y * st), -unit * (z * cp - far * sp), -(far * cp + z * sp)];
      };
      const stroke = (places, color, width) => {
        pen.beginPath();
        for (const [x, y] of places) pen.lineTo(x, y);
        Object.assign(pen, { strokeStyle: color, lineWidth: width, lineJoin: "round" });
        pen.stroke();
      };
      const items = []; // [depth, draw]
      const segments = (points, color, width) => {
        const places = points.map(seen);
        for (let i = 1; i < places.length; i++) {
          const pair = [places[i - 1], places[i]], depth = (pair[0][2] + pair[1][2]) / 2;
          items.push([depth, () => stroke(pair, typeof color === "string" ? color : color(depth), width)]);
        }
      };
      if (scene.has_sphere) {
        pen.beginPath();
        pen.arc(0, 0, unit, 0, 7);
        Object.assign(pen, { fillStyle: ink("shade"), strokeStyle: ink("rim"), lineWidth: 1 });
        pen.fill();
        pen.stroke();
        const [front, back] = [ink("front"), ink("back")];
        for (const wire of WIRES) segments(wire, (depth) => (depth > 0 ? front : back), 1);
      } else if (!scene.surface) for (const axis of AXES) stroke(axis.map(seen), ink("line"), 1);
      dots = [];
      for (const series of scene.series) {
        if (!series.on()) continue;
        const color = ink(`c${series.colour % 10}`), shape = SHAPES[Math.floor(series.colour / 10) % SHAPES.length];
        if (series.is_line) segments(series.points, color, series.size);
        else series.points.forEach((point, i) => {
          const [x, y, depth] = seen(point);
          dots.push([x, y, depth, `${series.name}\n${series.numbers[i] ?? i}: ${point.map(short).join(", ")}`]);
          items.push([depth, () => {
            pen.globalAlpha = depth > 0 || !scene.has_sphere ? 0.9 : 0.4;
            pen.fillStyle = color;
            pen.beginPath();
            shape(pen, x, y, (series.size / 2) * (1 + 0.25 * depth));
            pen.fill();
            pen.globalAlpha = 1;
          }]);
        });
      }
      const { surface } = scene;
      const rows = surface?.points.map((row) => row.map(seen)) ?? [];
      rows.forEach((row, i) => row.forEach((place, j) => {
        if (surface.values[i][j] !== null) dots.push([...place, `${short(surface.x[i])}, ${short(surface.y[j])}: ${short(surface.values[i][j])}`]);
        const color = surface.colours[i]?.[j];
        if (!color) return;
        const corners = [place, row[j + 1], rows[i + 1][j + 1], rows[i + 1][j]];
        items.push([corners.reduce((sum, corner) => sum + corner[2], 0) / 4, () => {
          pen.beginPath();
          for (const [x, y] of corners) pen.lineTo(x, y);
          pen.closePath();
          Object.assign(pen, { fillStyle: color, strokeStyle: "#0004", lineWidth: 0.5 });
          pen.fill();
          pen.stroke();
        }]);
      }));
      for (const [point, text] of scene.labels) {
        const [x, y, depth] = seen(point);
        items.push([depth, () => {
          Object.assign(pen, { fillStyle: ink("text"), font: "13px system-ui, sans-serif", textAlign: "center", textBaseline: "middle" });
          pen.fillText(text, x, y);
        }]);
      }
      items.sort(([a], [b]) => a - b);
      for (const [, paint] of items) paint();
      canvas.dataset.view = `${view.turn} ${view.tilt}`;
    };

    const turnBy = (turn, tilt) => {
      view.turn = (((view.turn + turn) % 360) + 360) % 360;
      view.tilt = Math.max(-90, Math.min(90, view.tilt + tilt));
      draw();
    };
    let from = null;
    canvas.onpointerdown = (event) => { from = event; canvas.setPointerCapture(event.pointerId); };
    canvas.onpointerup = canvas.onpointercancel = () => { from = null; };
    onHover(canvas, (event) => {
      if (from && event.type === "pointermove") {
        turnBy((event.clientX - from.clientX) / 2, (event.clientY - from.clientY) / 2);
        from = event;
        tip.hidden = true;
        return;
      }
      const box = canvas.getBoundingClientRect(), x = event.clientX - box.x - box.width / 2, y = event.clientY - box.y - box.height / 2;
      const near = dots.filter((dot) => Math.hypot(dot[0] - x, dot[1] - y) < 9).sort((a, b) => b[2] - a[2])[0];
      showTip(event, ...(near ? [[near[3]]] : []));
    });
    canvas.onkeydown = (event) => {
      const step = { ArrowLeft: [-10, 0], ArrowRight: [10, 0], ArrowUp: [0, -10], ArrowDown: [0, 10] }[event.key];
      if (step) event.preventDefault(), turnBy(...step);
    };

    const legend = element("div", { className: "legend" });
    for (const [name, series] of named) {
      const key = element("button", { type: "button", textContent: name });
      key.dataset.key = "";
      key.style.setProperty("--ink", `var(--c${series.colour % 10})`);
      key.setAttribute("aria-pressed", series.is_shown);
      key.onclick = () => press(key, (on) => { series.is_shown = on; draw(); });
      legend.append(key);
    }
    plot.prepend(element("h3", { textContent: svg.getAttribute("aria-label") }), canvas, legend);
    new ResizeObserver(draw).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  };

  for (const chart of document.querySelectorAll(".chart")) {
    const plot = chart.querySelector(".plot"), svg = plot.querySelector("svg");
    const { lines = [], grids = [], scene, csv } = JSON.parse(chart.querySelector("script").textContent);
    takeTitles(svg);
    const plots = lines.length ? readLines(svg, lines) : [];
    addKeys(svg);
    onHover(svg, (event) => {
      const text = hint(event), values = lines.length ? linesAt(plots, event) : grids.length ? gridsAt(svg, grids, event) : [];
      showTip(event, ...(values.length || !text ? values : [[text]]));
    });
    svg.addEventListener("pointerleave", () => plots.forEach(({ rule }) => rule.setAttribute("d", "")));
    if (csv) addDownload(chart, "append", () => svg.getAttribute("aria-label"), () => [
      csv, ...lines.flatMap(({ panel, name, x, y, spread }) => x.map((value, i) => [...(panel ? [panel] : []), name, value, y[i], spread[i]].slice(0, csv.length))),
    ]);
    if (scene) addScene(plot, svg, scene);
  }
})();
