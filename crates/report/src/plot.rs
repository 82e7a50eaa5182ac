//! Plots as inline SVG. Colours come from the page's style sheet, by class, so that a plot looks
//! right in light and dark.

use std::fmt::Write;

use crate::escape;
use crate::scale::{Scale, label};

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
/// Room for the labels of the axes.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 42.0;

/// One plot.
pub struct Plot<'a> {
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis<'a>,
    /// The vertical axis.
    pub y: Axis<'a>,
    /// Its values, the last on top.
    pub layers: Vec<Layer<'a>>,
}

/// An axis, which turns values into positions.
pub struct Axis<'a> {
    /// Its label.
    pub label: &'a str,
    /// Its range.
    pub scale: Scale,
}

/// Values in a plot.
pub struct Layer<'a> {
    /// Name in the legend; without one there is no entry.
    pub name: &'a str,
    /// Number of the colour; beyond the last the first follows.
    pub colour: usize,
    /// The values, in their shape.
    pub shape: Shape,
}

/// Shape in which values are drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// A line through points in order.
    Line(Vec<(f64, f64)>),
    /// A dot for each point.
    Dots(Vec<(f64, f64)>),
    /// Horizontal bars, for a vertical axis that counts rows.
    Bars(Vec<BarMark>),
}

/// A horizontal bar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BarMark {
    /// Its left end.
    pub from: f64,
    /// Its right end.
    pub to: f64,
    /// Its row; a row is as high as 1 of the vertical axis.
    pub row: f64,
}

/// Colours of the page's style sheet.
pub(crate) const COLOURS: usize = 8;

/// The class of a colour.
pub(crate) fn class(colour: usize) -> String {
    format!("c{}", colour % COLOURS)
}

impl Plot<'_> {
    /// The plot as an `svg` element.
    pub fn render(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(&self.title)
        );
        self.axes(&mut svg);
        self.layers.iter().for_each(|layer| self.layer(&mut svg, layer));
        self.legend(&mut svg);
        svg.push_str("</svg>\n");
        svg
    }

    fn axes(&self, svg: &mut String) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for tick in self.x.scale.ticks() {
            let x = self.x(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom}\"/>");
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                label(tick)
            );
        }
        for tick in self.y.scale.ticks() {
            let y = self.y(tick);
            let _ = writeln!(svg, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                label(tick)
            );
        }
        // After the grid, so that it is not crossed by it.
        let _ = writeln!(svg, "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}\"/>");
        let (middle, low) = ((LEFT + right) / 2.0, HEIGHT - 8.0);
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{low}\" text-anchor=\"middle\">{}</text>",
            escape(self.x.label)
        );
        let y = (TOP + bottom) / 2.0;
        let _ = writeln!(
            svg,
            "<text transform=\"translate(12 {y}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(self.y.label)
        );
    }

    fn layer(&self, svg: &mut String, layer: &Layer<'_>) {
        let class = class(layer.colour);
        match &layer.shape {
            Shape::Line(points) => {
                let _ = write!(svg, "<path class=\"line {class}\" d=\"");
                for (index, (x, y)) in points.iter().enumerate() {
                    let to = if index == 0 { 'M' } else { 'L' };
                    let _ = write!(svg, "{to}{:.1} {:.1}", self.x(*x), self.y(*y));
                }
                svg.push_str("\"/>\n");
            }
            // One path of zero-length strokes with round ends: a fraction of the size of circles.
            Shape::Dots(points) => {
                let _ = write!(svg, "<path class=\"dots {class}\" d=\"");
                for (x, y) in points {
                    let _ = write!(svg, "M{:.1} {:.1}h0", self.x(*x), self.y(*y));
                }
                svg.push_str("\"/>\n");
            }
            Shape::Bars(bars) => bars.iter().for_each(|bar| self.bar(svg, bar, &class)),
        }
    }

    fn bar(&self, svg: &mut String, bar: &BarMark, class: &str) {
        let (x, y) = (self.x(bar.from), self.y(bar.row + 0.9));
        // The shortest bar is still seen, and rows stay apart.
        let width = (self.x(bar.to) - x).max(0.2);
        let height = self.y(bar.row) - self.y(bar.row + 0.8);
        let _ = writeln!(
            svg,
            "<rect class=\"bar {class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"/>"
        );
    }

    fn legend(&self, svg: &mut String) {
        let named = self.layers.iter().filter(|layer| !layer.name.is_empty());
        for (index, layer) in named.enumerate() {
            let (x, y) = (LEFT + 10.0 + 120.0 * index as f64, TOP + 8.0);
            let _ =
                writeln!(svg, "<path class=\"line {}\" d=\"M{x} {y}h18\"/>", class(layer.colour));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\">{}</text>",
                x + 24.0,
                y + 4.0,
                escape(layer.name)
            );
        }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.scale.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.scale.place(value) * (HEIGHT - BOTTOM - TOP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_in_the_picture() {
        let bar = BarMark { from: 5.0, to: 99.0, row: 0.0 };
        let layer = |shape| Layer { name: "n", colour: 0, shape };
        let plot = Plot {
            title: "a<b".to_owned(),
            x: Axis { label: "x", scale: Scale::linear([0.0, 10.0].into_iter()) },
            y: Axis { label: "y", scale: Scale::logarithmic([1.0, 100.0].into_iter()) },
            layers: vec![
                layer(Shape::Line(vec![(0.0, 0.0), (99.0, 1e9)])),
                layer(Shape::Bars(vec![bar])),
            ],
        };
        let svg = plot.render();
        assert!(svg.contains("M60.0 218.0L546.0 14.0"), "{svg}");
        assert!(svg.contains("aria-label=\"a&lt;b\"") && !svg.contains("NaN"));
        assert_eq!(svg.matches("<rect").count(), 1);
    }
}
