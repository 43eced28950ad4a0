"use strict";
(function () {
  // A figure shows one measure against one axis; what has the same line is shown or hidden together.
  function hide(element, hidden) { if (hidden) element.setAttribute("hidden", ""); else element.removeAttribute("hidden"); }

  function show(figure) {
    const measure = figure.dataset.measure, axis = figure.dataset.axis;
    const plots = Array.from(figure.querySelectorAll("figure.plot"));
    const fits = function (plot) { return plot.dataset.measure === measure && plot.dataset.axis === axis; };
    plots.forEach(function (plot) {
      hide(plot, !fits(plot));
      plot.classList.toggle("printed", plot.dataset.axis === axis);
    });
    figure.querySelectorAll(".in-words").forEach(function (words) { hide(words, words.dataset.measure !== measure); });
    let none = figure.querySelector(".no-plot");
    if (!none) {
      none = document.createElement("p");
      none.className = "no-plot note";
      none.setAttribute("role", "status");
      figure.querySelector("figure.plot").before(none);
    }
    none.textContent = plots.some(fits) ? "" : "No line has this measure on this axis.";
  }

  function number(value) { return value.toLocaleString("en", { maximumSignificantDigits: 4 }); }

  function nearest(points, place) {
    let best = points[0];
    for (const point of points) if (Math.abs(point[0] - place) < Math.abs(best[0] - place)) best = point;
    return best;
  }

  function read(figure, readings, plot, event) {
    const area = plot.querySelector(".area"), box = area.getBoundingClientRect();
    const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
    const lines = readings.plots[plot.dataset.measure + " " + plot.dataset.axis] || {};
    const panel = plot.querySelector(".reading"), cursor = plot.querySelector(".cursor");
    const head = document.createElement("p"), list = document.createElement("ul");
    head.textContent = number(share * Number(plot.dataset.largest)) + " " + plot.dataset.title;
    Object.keys(lines).forEach(function (line) {
      if (figure.querySelector('.legend [data-line="' + line + '"]').checked === false) return;
      const item = document.createElement("li"), text = document.createElement("span");
      item.append(figure.querySelectorAll(".legend .swatch")[Number(line)].cloneNode(true));
      text.textContent = readings.names[Number(line)] + ": " + readings.texts[nearest(lines[line], 1000 * share)[1]];
      item.append(text);
      list.append(item);
    });
    panel.replaceChildren(head, list);
    hide(panel, false);
    panel.classList.toggle("left", share > 0.5);
    cursor.setAttribute("x1", 100 * share + "%");
    cursor.setAttribute("x2", 100 * share + "%");
    cursor.setAttribute("visibility", "visible");
  }

  function leave(plot) {
    hide(plot.querySelector(".reading"), true);
    plot.querySelector(".cursor").setAttribute("visibility", "hidden");
  }

  document.querySelectorAll(".figure").forEach(function (figure) {
    const readings = JSON.parse(figure.querySelector(".readings").textContent);
    figure.addEventListener("change", function (event) {
      const chosen = event.target;
      if (chosen.dataset.choice) {
        figure.dataset[chosen.dataset.choice] = chosen.value;
        show(figure);
      } else if (chosen.dataset.line) {
        figure.querySelectorAll('.plot [data-line="' + chosen.dataset.line + '"]').forEach(function (part) {
          part.classList.toggle("off", !chosen.checked);
        });
      }
    });
    figure.querySelectorAll("figure.plot").forEach(function (plot) {
      const area = plot.querySelector(".area");
      ["pointermove", "pointerdown"].forEach(function (name) {
        area.addEventListener(name, function (event) { read(figure, readings, plot, event); });
      });
      area.addEventListener("pointerleave", function () { leave(plot); });
    });
    show(figure);
  });

  // Tables are sorted by their headings, which become buttons.
  function value(row, column) {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
  }

  function compare(one, other) {
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    return typeof one === "number" ? one - other : one.localeCompare(other, "en", { numeric: true });
  }

  document.querySelectorAll("table.sortable").forEach(function (table) {
    const body = table.tBodies[0], heads = Array.from(table.tHead.rows[0].cells);
    const said = document.createElement("p");
    said.className = "unseen";
    said.setAttribute("role", "status");
    table.parentElement.after(said);
    heads.forEach(function (head, column) {
      const button = document.createElement("button"), name = head.textContent;
      button.type = "button";
      button.textContent = name;
      head.replaceChildren(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", function () {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach(function (other) { other.setAttribute("aria-sort", "none"); });
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = Array.from(body.rows);
        rows.sort(function (one, other) {
          const order = compare(value(one, column), value(other, column));
          return up ? order : -order;
        });
        body.append(...rows);
        said.textContent = "Sorted by " + name + ", " + (up ? "ascending" : "descending") + ".";
      });
    });
  });

  // On paper everything is unfolded.
  let folded = [];
  window.addEventListener("beforeprint", function () {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    folded.forEach(function (details) { details.open = true; });
  });
  window.addEventListener("afterprint", function () {
    folded.forEach(function (details) { details.open = false; });
    folded = [];
  });
  document.documentElement.classList.add("scripted");
})();
