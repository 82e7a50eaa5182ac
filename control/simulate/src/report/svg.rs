//! Plots, drawn here: no scripts and no fonts from elsewhere.

use std::fmt::Write;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 62.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 10.0;
const RIGHT: f64 = 12.0;

/// Colours that stay apart for the colour-blind.
///
/// Source: the palette of Okabe and Ito.
const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a7a00", "#000000"];

/// The colour of the line with this number.
pub(super) fn colour(line: usize) -> &'static str {
    COLOURS[line % COLOURS.len()]
}

/// One axis: label, range and scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) label: &'static str,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) logarithmic: bool,
}

impl Axis {
    /// From 0 to the largest of the values, or to 1.
    pub(super) fn linear(label: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let high = values.fold(0.0, f64::max);
        let high = if high > 0.0 { high } else { 1.0 };
        Self { label, low: 0.0, high, logarithmic: false }
    }

    /// Powers of ten around the values, which are above 0.
    pub(super) fn logarithmic(label: &'static str, values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::MAX, f64::MIN_POSITIVE);
        for value in values.filter(|value| *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        let low = if low > high { 1.0 } else { low };
        let (low, high) = (low.log10().floor(), high.max(low).log10().ceil());
        let high = if high > low { high } else { low + 1.0 };
        Self { label, low: 10_f64.powf(low), high: 10_f64.powf(high), logarithmic: true }
    }

    /// Position of a value on the axis, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match self.logarithmic {
            true => {
                let decades = (self.high / self.low).log10();
                (value.max(self.low) / self.low).log10() / decades
            }
            false => (value - self.low) / (self.high - self.low),
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.logarithmic {
            let decades = (self.high / self.low).log10().round() as i32;
            return (0..=decades).map(|decade| self.low * 10_f64.powi(decade)).collect();
        }
        let span = self.high - self.low;
        let rough = 10_f64.powf((span / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * rough);
        let step = step.into_iter().find(|step| span / step <= 6.0).unwrap_or(span);
        (0..=6).map(|n| self.low + step * f64::from(n)).filter(|t| *t <= self.high).collect()
    }
}

/// A plot under way.
pub(super) struct Plot {
    x: Axis,
    y: Axis,
    body: String,
}

impl Plot {
    /// Axes without lines.
    pub(super) fn new(x: Axis, y: Axis) -> Self {
        let mut plot = Self { x, y, body: String::new() };
        for tick in x.ticks() {
            let at = plot.across(tick);
            plot.tick((at, TOP), (at, HEIGHT - BOTTOM), (at, HEIGHT - BOTTOM + 14.0), tick);
        }
        for tick in y.ticks() {
            let at = plot.down(tick);
            plot.tick((LEFT, at), (WIDTH - RIGHT, at), (LEFT - 4.0, at + 4.0), tick);
        }
        let (middle, low) = ((LEFT + WIDTH) / 2.0, HEIGHT - 4.0);
        let centre = (HEIGHT - BOTTOM) / 2.0;
        let _ = write!(
            plot.body,
            "<text x='{middle:.0}' y='{low:.0}' text-anchor='middle'>{}</text>\
             <text transform='translate(12 {centre:.0}) rotate(-90)' \
             text-anchor='middle'>{}</text>",
            x.label, y.label
        );
        plot
    }

    /// A line through points in order.
    pub(super) fn line(&mut self, points: impl Iterator<Item = (f64, f64)>, colour: &str) {
        let mut path = String::new();
        for (x, y) in points {
            let _ = write!(path, "{:.1},{:.1} ", self.across(x), self.down(y));
        }
        let _ = write!(
            self.body,
            "<polyline points='{}' fill='none' stroke='{colour}' stroke-width='1.6'/>",
            path.trim_end()
        );
    }

    /// A horizontal bar from one place to another, at a height of the vertical axis.
    pub(super) fn bar(&mut self, from: f64, to: f64, row: f64, colour: &str) {
        let (x, end) = (self.across(from), self.across(to));
        let (y, height) = (self.down(row + 0.9), self.down(row) - self.down(row + 0.8));
        let width = (end - x).max(0.2);
        let _ = write!(
            self.body,
            "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' fill='{colour}'/>"
        );
    }

    /// The finished element.
    pub(super) fn finish(self) -> String {
        format!("<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>{}</svg>", self.body)
    }

    fn across(&self, value: f64) -> f64 {
        LEFT + self.x.place(value) * (WIDTH - LEFT - RIGHT)
    }

    fn down(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.y.place(value) * (HEIGHT - BOTTOM - TOP)
    }

    fn tick(&mut self, from: (f64, f64), to: (f64, f64), text: (f64, f64), value: f64) {
        let anchor = if from.0 == to.0 { "middle" } else { "end" };
        let _ = write!(
            self.body,
            "<line x1='{:.1}' y1='{:.1}' x2='{:.1}' y2='{:.1}' class='grid'/>\
             <text x='{:.1}' y='{:.1}' text-anchor='{anchor}'>{}</text>",
            from.0,
            from.1,
            to.0,
            to.1,
            text.0,
            text.1,
            short(value)
        );
    }
}

/// A number as short as it can be told.
fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e4 => format!("{}k", value / 1e3),
        value => format!("{}", (value * 1e4).round() / 1e4),
    }
}
