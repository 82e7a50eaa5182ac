"""Markdown tables: the median of the passes and, in parentheses, their range."""

import statistics


def cell(rows, read, digits):
    """Median and range of a number over some rows; a dash where none has it."""
    values = [value for value in map(read, rows) if value is not None]
    if not values:
        return "-"
    low, middle, high = (
        f"{value:,.{digits}f}" for value in (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low}–{high})"


def markdown(title, first, columns, rows):
    """One table; a row for each variant, in the order of their coming."""
    lines = [[first, *(head for head, _, _ in columns)], ["---"] * (len(columns) + 1)]
    for name in dict.fromkeys(row["variant"] for row in rows):
        passes = [row for row in rows if row["variant"] == name]
        lines.append([name, *(cell(passes, read, digits) for _, read, digits in columns)])
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"#### {title}\n\n{table}\n"
