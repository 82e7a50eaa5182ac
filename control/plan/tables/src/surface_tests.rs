use super::*;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The obvious model: all points are looked at for the neighbours on each axis.
fn slow(points: &[([f64; 2], f64)], at: [f64; 2]) -> f64 {
    let mut lines: BTreeMap<u64, Vec<(f64, f64)>> = BTreeMap::new();
    for ([x, y], time) in points {
        lines.entry(x.to_bits()).or_default().push((*y, *time));
    }
    let along: Vec<(f64, f64)> =
        lines.into_iter().map(|(x, line)| (f64::from_bits(x), slow_line(&line, at[1]))).collect();
    slow_line(&along, at[0])
}

fn slow_line(points: &[(f64, f64)], x: f64) -> f64 {
    let mut points = points.to_vec();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let power = |a: (f64, f64), b: (f64, f64)| (b.1 / a.1).ln() / (b.0 / a.0).ln();
    if let Some(point) = points.iter().find(|point| (point.0 - x).abs() < 1e-12 * x) {
        return point.1;
    }
    for pair in points.windows(2) {
        if pair[0].0 < x && x < pair[1].0 {
            return pair[0].1 * (x / pair[0].0).powf(power(pair[0], pair[1]));
        }
    }
    if points.len() == 1 {
        return points[0].1;
    }
    let (near, next) = if x < points[0].0 {
        (points[0], points[1])
    } else {
        (points[points.len() - 1], points[points.len() - 2])
    };
    near.1 * (x / near.0).powf(power(near, next).clamp(0.0, 2.0))
}

/// Points at whole coordinates, each once, that need not fill a grid.
fn some_points() -> impl Strategy<Value = Vec<([f64; 2], f64)>> {
    btree_map((1_u32..50, 1_u32..50), 0.001_f64..1_000.0, 1..40).prop_map(|points| {
        let point = |((x, y), time)| ([f64::from(x), f64::from(y)], time);
        points.into_iter().map(point).collect()
    })
}

proptest! {
    #[test]
    fn agrees_with_a_plain_search(points in some_points(), at in [0.5_f64..80.0, 0.5_f64..80.0]) {
        let surface = Surface::new(points.clone()).expect("there are points");
        let (fast, slow) = (surface.time(at), slow(&points, at));
        prop_assert!((fast / slow - 1.0).abs() < 1e-6, "{fast} {slow}");
    }

    #[test]
    fn measured_points_come_back(points in some_points()) {
        let surface = Surface::new(points.clone()).expect("there are points");
        for (at, time) in points {
            prop_assert!((surface.time(at) / time - 1.0).abs() < 1e-9);
        }
    }

    /// Between two neighbours the time goes one way, and stays between theirs.
    #[test]
    fn between_neighbours_the_time_is_monotone(times in vec(0.001_f64..1_000.0, 2..8), steps in 2_u32..20) {
        let points = (1_u32..).zip(&times).map(|(x, time)| ([f64::from(x * x)], *time));
        let surface = Surface::new(points).expect("there are points");
        for (number, pair) in (1_u32..).zip(times.windows(2)) {
            let (low, high) = (f64::from(number * number), f64::from((number + 1) * (number + 1)));
            let at = |step: u32| low + (high - low) * f64::from(step) / f64::from(steps);
            let between: Vec<f64> = (0..=steps).map(|step| surface.time([at(step)])).collect();
            let rises = pair[1] >= pair[0];
            for two in between.windows(2) {
                let change = two[1] / two[0] - 1.0;
                prop_assert!(if rises { change > -1e-9 } else { change < 1e-9 }, "{between:?}");
            }
        }
    }

    /// Beyond the points the time never falls, and grows with the square at most.
    #[test]
    fn beyond_the_points_the_time_never_falls(times in vec(0.001_f64..1_000.0, 1..6), far in 1.0_f64..50.0) {
        let points = (1_u32..).zip(&times).map(|(x, time)| ([f64::from(x)], *time));
        let surface = Surface::new(points).expect("there are points");
        let last = times.len() as f64;
        let growth = surface.time([last * far]) / times[times.len() - 1];
        prop_assert!(growth >= 1.0 - 1e-9 && growth <= far * far * (1.0 + 1e-9), "{growth}");
    }
}

#[test]
fn the_fastest_of_two_kernels_counts() {
    let surface = Surface::new([([8.0], 3.0), ([8.0], 2.0), ([16.0], 4.0)]).expect("points");
    assert!((surface.time([8.0]) - 2.0).abs() < 1e-12);
    assert_eq!(Surface::<1>::new([]), None);
}

#[test]
fn a_power_law_leaves_no_gap() {
    let points = (0..8).map(|power| f64::from(1 << power));
    let surface = Surface::new(points.map(|x| ([x], 3.0 * x * x))).expect("points");
    assert_eq!(surface.gap_errors().count(), 6);
    assert!(surface.gap_errors().all(|error| error < 1e-9));
    let bent = Surface::new([([1.0], 1.0), ([2.0], 4.0), ([4.0], 4.0)]).expect("points");
    // The line between the neighbours says 2 where 4 was measured.
    assert!(bent.gap_errors().all(|error| (error - 0.5).abs() < 1e-9));
}
