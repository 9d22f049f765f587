def _cloche_formats():
    """Adds formats to a Python kernel: the data of charts and of tables, beside their pictures and HTML."""
    import math

    from IPython import get_ipython
    from IPython.core.formatters import BaseFormatter
    from traitlets import ObjectName, Unicode

    limit = 5000  # points of a line, and rows of a table

    def plain(v):
        """Returns a value that JSON has."""
        if hasattr(v, "isoformat"):
            return None if v != v else v.isoformat()
        if hasattr(v, "item"):
            v = v.item()
        if isinstance(v, float) and not math.isfinite(v):
            return None
        return v if isinstance(v, (int, float, str, bool)) or v is None else str(v)

    def axis(a, dates):
        import matplotlib.dates

        scale = a.get_scale()
        if isinstance(a.get_major_formatter(), matplotlib.dates.DateFormatter) or dates:
            scale = "datetime"
        return scale, [plain(t) for t in a.get_ticklocs()], [t.get_text() for t in a.get_ticklabels()]

    def label(text):
        """Splits a label such as "speed (m/s)" into name and unit."""
        name, open_, rest = text.partition(" (")
        return text or None, rest[:-1] if open_ and rest.endswith(")") else None

    def points(xs, ys):
        return [[plain(x), plain(y)] for x, y in zip(list(xs)[:limit], list(ys)[:limit])]

    def named(artist, n):
        text = str(artist.get_label())
        return f"Series {n}" if text.startswith("_") else text

    def is_date(values):
        return any(hasattr(v, "isoformat") or type(v).__name__ == "datetime64" for v in list(values)[:1])

    def bars(ax):
        out = []
        for n, c in enumerate(ax.containers):
            if not hasattr(c, "patches") or not c.patches:
                continue
            wide = getattr(c, "orientation", "vertical") == "horizontal"
            by = ax.yaxis if wide else ax.xaxis
            ticks = dict(zip([round(float(t), 6) for t in by.get_ticklocs()], [t.get_text() for t in by.get_ticklabels()]))
            for p in c.patches[:limit]:
                at = p.get_y() + p.get_height() / 2 if wide else p.get_x() + p.get_width() / 2
                name = ticks.get(round(float(at), 6)) or str(plain(round(float(at), 6)))
                out.append({"label": name, "group": named(c, n), "value": plain(p.get_width() if wide else p.get_height())})
        return out

    def boxes(ax):
        """Reads the lines of Axes.boxplot: whiskers, caps and medians have no name of their own."""
        out = []
        labels = [t.get_text() for t in ax.xaxis.get_ticklabels()]
        rows = [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata())), line) for line in ax.lines]
        frames = [r for r in rows if len(r[0]) == 5]
        for n, (xs, ys, _) in enumerate(frames):
            mid, low, high = (min(xs) + max(xs)) / 2, min(ys), max(ys)
            ends = [y for x, y, _ in rows if len(x) == 2 and x[0] == x[1] and abs(x[0] - mid) < 1e-6 for y in y]
            median = [y[0] for x, y, _ in rows if len(x) == 2 and y[0] == y[1] and abs(sum(x) / 2 - mid) < 1e-6 and low <= y[0] <= high and abs((x[1] - x[0]) - (max(xs) - min(xs))) < 1e-6]
            fliers = [v for x, y, line in rows if line.get_linestyle() == "None" and len(x) and abs(x[0] - mid) < 1e-6 for v in y]
            out.append({
                "label": labels[n] if n < len(labels) else str(n + 1), "min": min(ends or ys), "first_quartile": low,
                "median": median[0] if median else (low + high) / 2, "third_quartile": high, "max": max(ends or ys), "outliers": fliers,
            })  # fmt: skip
        return out

    def chart(ax):
        from matplotlib.collections import PathCollection
        from matplotlib.patches import Rectangle, Wedge

        wedges = [p for p in ax.patches if isinstance(p, Wedge)]
        title = ax.get_title() or None
        if wedges:
            texts = [t.get_text() for t in ax.texts]
            step = max(1, len(texts) // len(wedges))
            return {"type": "pie", "title": title, "elements": [
                {"label": texts[i * step] if i * step < len(texts) else "", "angle": plain(abs(w.theta2 - w.theta1)), "radius": plain(w.r)}
                for i, w in enumerate(wedges[:limit])
            ]}  # fmt: skip
        x_label, x_unit = label(ax.get_xlabel())
        y_label, y_unit = label(ax.get_ylabel())
        out = {"title": title, "x_label": x_label, "x_unit": x_unit, "y_label": y_label, "y_unit": y_unit}
        scatters = [c for c in ax.collections if isinstance(c, PathCollection)]
        if any(len(line.get_xdata()) == 5 and line.get_xdata()[0] == line.get_xdata()[-1] for line in ax.lines):
            return {"type": "box_and_whisker", **out, "elements": boxes(ax)}
        if any(isinstance(p, Rectangle) for p in ax.patches):
            return {"type": "bar", **out, "elements": bars(ax)}
        if not ax.lines and not scatters:
            return {"type": "unknown", **out, "elements": []}
        dates = any(is_date(line.get_xdata(orig=True)) for line in ax.lines)
        for key, a in ("x", ax.xaxis), ("y", ax.yaxis):
            out[f"{key}_scale"], out[f"{key}_ticks"], out[f"{key}_tick_labels"] = axis(a, dates and key == "x")
        if ax.lines:
            elements = [{"label": named(line, n), "points": points(line.get_xdata(orig=True), line.get_ydata(orig=True))} for n, line in enumerate(ax.lines)]
            return {"type": "line", **out, "elements": elements}
        elements = [{"label": named(c, n), "points": points(c.get_offsets()[:, 0], c.get_offsets()[:, 1])} for n, c in enumerate(scatters)]
        return {"type": "scatter", **out, "elements": elements}

    def figure(fig):
        charts = [chart(ax) for ax in fig.axes]
        if len(charts) == 1:
            return charts[0]
        title = fig._suptitle.get_text() if getattr(fig, "_suptitle", None) else None
        return {"type": "superchart", "title": title, "elements": charts} if charts else None

    def table(df):
        return {str(k): [plain(v) for v in df[k].iloc[:limit].tolist()] for k in df.columns} if df.columns.is_unique else None

    def quietly(fn):
        def run(value):
            try:
                return fn(value)
            except Exception:
                return None  # a picture or a table without its data

        return run

    def formatter(mime, kinds, fn):
        """Returns a formatter. It has types of its own: matplotlib takes Figure from the types of all formatters."""

        class Formatter(BaseFormatter):
            format_type = Unicode(mime)
            print_method = ObjectName("_repr_cloche_")

            def __call__(self, value):
                if any((c.__module__, c.__name__) in kinds for c in type(value).__mro__):
                    return quietly(fn)(value)

        return Formatter

    ip = get_ipython()
    for mime, kinds, fn in (
        ("application/vnd.cloche.chart+json", [("matplotlib.figure", "Figure")], figure),
        ("application/vnd.cloche.table+json", [("pandas.core.frame", "DataFrame"), ("pandas", "DataFrame")], table),
    ):
        ip.display_formatter.formatters[mime] = formatter(mime, kinds, fn)(parent=ip.display_formatter)


_cloche_formats()
del _cloche_formats
