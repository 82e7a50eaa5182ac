//! Plots as inline SVG. Colours come from the page's style sheet, by class, so that a plot looks
//! right in light and dark.

use std::fmt::Write;

use super::number::short;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 260.0;
/// Room for the labels of the axes.
const LEFT: f64 = 60.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 42.0;

/// One plot.
pub(super) struct Plot<'a> {
    pub(super) title: &'a str,
    pub(super) x: Axis<'a>,
    pub(super) y: Axis<'a>,
    pub(super) layers: Vec<Layer<'a>>,
}

/// An axis, which turns values into positions.
pub(super) struct Axis<'a> {
    pub(super) label: &'a str,
    pub(super) scale: Scale,
}

/// The range of an axis; never empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
}

/// Values in a plot.
pub(super) struct Layer<'a> {
    /// Name in the legend; without one there is no entry.
    pub(super) name: &'a str,
    /// Class that gives the colour.
    pub(super) class: &'a str,
    pub(super) mark: Mark,
    pub(super) points: Vec<(f64, f64)>,
}

/// Shape in which values are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    Line,
    Dots,
}

impl Scale {
    /// From zero to the largest value.
    pub(super) fn linear(values: impl Iterator<Item = f64>) -> Self {
        let high = values.fold(0.0, f64::max);
        Self { low: 0.0, high: if high > 0.0 { high * 1.02 } else { 1.0 }, log: false }
    }

    /// From the smallest to the largest value above zero; linear where they are within a factor
    /// of ten, since a logarithmic axis would say little then.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64> + Clone) -> Self {
        let low = values.clone().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
        let high = values.clone().fold(0.0, f64::max);
        if high > low * 10.0 {
            return Self { low, high, log: true };
        }
        Self::linear(values)
    }

    /// Position of a value on the axis, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value.max(self.low) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    /// Round values within the range: 1, 2 and 5 in each power of ten as they are needed.
    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let decades = (self.high / self.low).log10();
            let steps: &[f64] = if decades < 3.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let powers = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            let all =
                powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
            return all.filter(|tick| (self.low..=self.high).contains(tick)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let last = ((self.high - self.low) / step + 1e-9).floor() as u32;
        (0..=last).map(|n| self.low + f64::from(n) * step).collect()
    }
}

impl Plot<'_> {
    /// The plot as an `svg` element.
    pub(super) fn render(&self) -> String {
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
            escape(self.title)
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
        let places = layer.points.iter().map(|(x, y)| (self.x(*x), self.y(*y)));
        match layer.mark {
            Mark::Line => {
                let _ = write!(svg, "<path class=\"line {}\" d=\"", layer.class);
                for (index, (x, y)) in places.enumerate() {
                    let _ = write!(svg, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
                }
                svg.push_str("\"/>\n");
            }
            // One path of zero-length strokes with round ends: a fraction of the size of circles.
            Mark::Dots => {
                let _ = write!(svg, "<path class=\"dots {}\" d=\"", layer.class);
                for (x, y) in places {
                    let _ = write!(svg, "M{x:.1} {y:.1}h0");
                }
                svg.push_str("\"/>\n");
            }
        }
    }

    fn legend(&self, svg: &mut String) {
        let named = self.layers.iter().filter(|layer| !layer.name.is_empty());
        for (index, layer) in named.enumerate() {
            let (x, y) = (LEFT + 10.0 + 120.0 * index as f64, TOP + 8.0);
            let _ = writeln!(svg, "<path class=\"line {}\" d=\"M{x} {y}h18\"/>", layer.class);
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

/// A tick's value without needless zeros.
fn label(tick: f64) -> String {
    let text = short(tick);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Text that is safe inside HTML and its attributes.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            _ => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale) -> Vec<String> {
        scale.ticks().into_iter().map(label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(Scale::linear([9.0].into_iter())), ["0", "2", "4", "6", "8"]);
        assert_eq!(
            labels(Scale::linear([0.0].into_iter())),
            ["0", "0.2", "0.4", "0.6", "0.8", "1"]
        );
        assert_eq!(
            labels(Scale::logarithmic([0.8, 30.0].into_iter())),
            ["1", "2", "5", "10", "20"]
        );
        assert_eq!(
            labels(Scale::logarithmic([0.5, 20_000.0].into_iter())),
            ["1", "10", "100", "1,000", "10,000"]
        );
    }

    #[test]
    fn values_close_together_get_a_linear_axis() {
        assert!(!Scale::logarithmic([5.0, 20.0].into_iter()).log);
        assert!(!Scale::logarithmic(std::iter::empty()).log);
    }

    #[test]
    fn values_stay_in_the_picture() {
        let plot = Plot {
            title: "a<b",
            x: Axis { label: "x", scale: Scale::linear([0.0, 10.0].into_iter()) },
            y: Axis { label: "y", scale: Scale::logarithmic([1.0, 100.0].into_iter()) },
            layers: vec![Layer {
                name: "n",
                class: "a",
                mark: Mark::Line,
                points: vec![(0.0, 0.0), (99.0, 1e9)],
            }],
        };
        let svg = plot.render();
        assert!(svg.contains("M60.0 218.0L546.0 14.0"), "{svg}");
        assert!(svg.contains("aria-label=\"a&lt;b\"") && !svg.contains("NaN"));
    }
}
