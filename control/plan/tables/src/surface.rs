//! Times between measured points.

/// Steepest power that is extrapolated: attention grows with the square of a prompt.
const POWER_MAX: f64 = 2.0;

/// Measured times over several axes, and times between and beyond them.
///
/// Along each axis the logarithm of the time is a straight line over the logarithm of the
/// coordinate between two neighbours: a power law, which an operation bound by arithmetic, by
/// memory or by its launch follows exactly. Beyond the last point the last power goes on, within 0
/// to 2: a time never falls. Points need not fill the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Surface<const AXES: usize> {
    /// In the order of their coordinates.
    points: Vec<MeasuredPoint<AXES>>,
}

/// Logarithms of coordinates and of a time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct MeasuredPoint<const AXES: usize> {
    at: [f64; AXES],
    time: f64,
}

impl<const AXES: usize> Surface<AXES> {
    /// The surface through these points; `None` without one. Coordinates and times are above 0. Of
    /// points at the same place the shortest time counts: an engine takes its fastest kernel.
    pub fn new(points: impl IntoIterator<Item = ([f64; AXES], f64)>) -> Option<Self> {
        let logarithms = points
            .into_iter()
            .map(|(at, time)| MeasuredPoint { at: at.map(f64::ln), time: time.ln() });
        let mut points: Vec<_> = logarithms.collect();
        points.sort_by(|a, b| {
            let axes = a.at.iter().zip(&b.at).map(|(a, b)| a.total_cmp(b));
            axes.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
                .then(a.time.total_cmp(&b.time))
        });
        points.dedup_by(|next, first| next.at == first.at);
        (!points.is_empty()).then_some(Self { points })
    }

    /// The time at these coordinates, all above 0.
    pub fn time(&self, at: [f64; AXES]) -> f64 {
        time_of(&self.points, 0, &at.map(f64::ln)).exp()
    }

    /// Errors of points that are taken away and read from their two neighbours along the last axis,
    /// as shares of the measured times.
    pub fn gap_errors(&self) -> impl Iterator<Item = f64> {
        self.points.windows(3).filter_map(|three| {
            let [before, point, after] = three else { return None };
            let lead = AXES - 1;
            let is_one_line =
                before.at[..lead] == point.at[..lead] && point.at[..lead] == after.at[..lead];
            let ends = [(before.at[lead], before.time), (after.at[lead], after.time)];
            is_one_line.then(|| ((line(ends, point.at[lead]) - point.time).exp() - 1.0).abs())
        })
    }
}

/// Logarithm of the time among points that are alike on all axes before this one.
fn time_of<const AXES: usize>(
    points: &[MeasuredPoint<AXES>],
    axis: usize,
    at: &[f64; AXES],
) -> f64 {
    if axis == AXES {
        return points[0].time;
    }
    let x = at[axis];
    let (below, above) = points.split_at(points.partition_point(|point| point.at[axis] <= x));
    let value = |group: &[MeasuredPoint<AXES>]| (group[0].at[axis], time_of(group, axis + 1, at));
    match (last_group(below, axis), first_group(above, axis)) {
        (Some(low), _) if low[0].at[axis] == x => time_of(low, axis + 1, at),
        (Some(low), Some(high)) => line([value(low), value(high)], x),
        (Some(last), None) => {
            let before = last_group(&below[..below.len() - last.len()], axis);
            beyond(value(last), before.map(value), x)
        }
        (None, Some(first)) => {
            let after = first_group(&above[first.len()..], axis);
            beyond(value(first), after.map(value), x)
        }
        (None, None) => f64::NAN,
    }
}

/// Points that are alike on this axis, the last of them all.
fn last_group<const AXES: usize>(
    points: &[MeasuredPoint<AXES>],
    axis: usize,
) -> Option<&[MeasuredPoint<AXES>]> {
    let value = points.last()?.at[axis];
    Some(&points[points.partition_point(|point| point.at[axis] < value)..])
}

/// Points that are alike on this axis, the first of them all.
fn first_group<const AXES: usize>(
    points: &[MeasuredPoint<AXES>],
    axis: usize,
) -> Option<&[MeasuredPoint<AXES>]> {
    let value = points.first()?.at[axis];
    Some(&points[..points.partition_point(|point| point.at[axis] <= value)])
}

/// The line through two points.
fn line(ends: [(f64, f64); 2], x: f64) -> f64 {
    let [(x0, y0), (x1, y1)] = ends;
    y0 + (y1 - y0) * (x - x0) / (x1 - x0)
}

/// The last power, beyond the last point; without a point before it the time stays.
fn beyond(last: (f64, f64), before: Option<(f64, f64)>, x: f64) -> f64 {
    let power = before.map_or(0.0, |before| (last.1 - before.1) / (last.0 - before.0));
    last.1 + power.clamp(0.0, POWER_MAX) * (x - last.0)
}

#[cfg(test)]
#[path = "surface_tests.rs"]
mod tests;
