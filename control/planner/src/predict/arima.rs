//! ARIMA without moving averages: autoregression on the values, on their differences, or on the
//! differences of these, fitted by least squares. Akaike's criterion chooses the order.

use super::{Forecast, RateSeries};

/// Most values that an order looks back, and most differences.
const LAGS_MAX: usize = 3;
const DIFFERENCES_MAX: usize = 2;
/// Values that are fitted.
const WINDOW: usize = 200;
/// Values for each coefficient, at least.
const VALUES_PER_LAG: usize = 4;

/// A fitted order.
struct Fit {
    differences: usize,
    /// Constant, and a factor for each earlier value, the latest first.
    coefficients: Vec<f64>,
    /// Variance of what is left.
    variance: f64,
    criterion: f64,
}

/// The value a while after the last one.
pub(super) fn forecast(series: RateSeries<'_>, ahead_s: f64, log1p: bool) -> Forecast {
    let values = &series.values[series.values.len().saturating_sub(WINDOW)..];
    let (first, last) = (values[0], values[values.len() - 1]);
    if values.iter().all(|value| *value == first) {
        return Forecast { rate: last, ..Forecast::default() };
    }
    let turned: Vec<f64> = match log1p {
        true => values.iter().map(|value| value.max(0.0).ln_1p()).collect(),
        false => values.to_vec(),
    };
    let steps = (ahead_s / series.step_s).round().max(1.0) as usize;
    let Some(fit) = best(&turned) else { return Forecast { rate: last, ..Forecast::default() } };
    let end = extend(&turned, &fit, steps);
    let deviation = (fit.variance * steps as f64).sqrt();
    match log1p {
        // An exponential of a wrong trend leaves every bound.
        true => Forecast { rate: end.exp_m1().min(4.0 * last.max(1.0)), ..Forecast::default() },
        false => Forecast { rate: end, deviation, surge: 0.0 },
    }
}

fn best(values: &[f64]) -> Option<Fit> {
    let orders = (0..=DIFFERENCES_MAX)
        .flat_map(|differences| (0..=LAGS_MAX).map(move |lags| (differences, lags)));
    let fits = orders.filter_map(|(differences, lags)| fit(values, differences, lags));
    fits.min_by(|one, other| one.criterion.total_cmp(&other.criterion))
}

fn differenced(values: &[f64], differences: usize) -> Vec<f64> {
    let mut series = values.to_vec();
    for _ in 0..differences {
        series = series.windows(2).map(|pair| pair[1] - pair[0]).collect();
    }
    series
}

fn fit(values: &[f64], differences: usize, lags: usize) -> Option<Fit> {
    let series = differenced(values, differences);
    // All orders are judged by the same values, or the shortest would win.
    let skipped = (LAGS_MAX + DIFFERENCES_MAX).checked_sub(differences)?;
    let count = series.len().checked_sub(skipped)?;
    // A trend that repeats differences has no constant.
    let terms = lags + usize::from(differences < 2);
    if count < VALUES_PER_LAG * (terms + 1) {
        return None;
    }
    let row = |at: usize| {
        let constant = if differences < 2 { 1.0 } else { 0.0 };
        let lagged = (1..=lags).map(|lag| series[at - lag]);
        std::iter::once(constant).chain(lagged).collect::<Vec<_>>()
    };
    let rows: Vec<Vec<f64>> = (skipped..series.len()).map(row).collect();
    let coefficients = least_squares(&rows, &series[skipped..])?;
    let left = rows.iter().zip(&series[skipped..]).map(|(row, value)| {
        let told: f64 = row.iter().zip(&coefficients).map(|(one, factor)| one * factor).sum();
        (value - told).powi(2)
    });
    let variance = (left.sum::<f64>() / count as f64).max(1e-12);
    let criterion = count as f64 * variance.ln() + 2.0 * (terms + differences) as f64;
    Some(Fit { differences, coefficients, variance, criterion })
}

/// The value so many steps after the last.
fn extend(values: &[f64], fit: &Fit, steps: usize) -> f64 {
    // The last value of the series and of each of its differences.
    let mut ends: Vec<f64> = (0..fit.differences)
        .map(|order| differenced(values, order).last().copied().unwrap_or(0.0))
        .collect();
    let mut series = differenced(values, fit.differences);
    let mut end = values.last().copied().unwrap_or(0.0);
    for _ in 0..steps {
        let lagged = series.iter().rev().zip(&fit.coefficients[1..]);
        let next = fit.coefficients[0] + lagged.map(|(value, factor)| value * factor).sum::<f64>();
        series.push(next);
        let mut grown = next;
        for value in ends.iter_mut().rev() {
            *value += grown;
            grown = *value;
        }
        end = grown;
    }
    end
}

/// Coefficients of the least squares; none if rows say the same. The first column may be 0.
fn least_squares(rows: &[Vec<f64>], values: &[f64]) -> Option<Vec<f64>> {
    let terms = rows.first()?.len();
    let mut matrix = vec![vec![0.0; terms + 1]; terms];
    for (row, value) in rows.iter().zip(values) {
        for (line, one) in matrix.iter_mut().zip(row) {
            for (cell, other) in line.iter_mut().zip(row.iter().chain([value])) {
                *cell += one * other;
            }
        }
    }
    // A little of the identity keeps equal columns, and columns of zeros, solvable.
    let scale: f64 = (0..terms).map(|at| matrix[at][at]).sum::<f64>().max(1e-9);
    for (at, line) in matrix.iter_mut().enumerate() {
        line[at] += 1e-9 * scale;
    }
    for at in 0..terms {
        let pivot =
            (at..terms).max_by(|a, b| matrix[*a][at].abs().total_cmp(&matrix[*b][at].abs()))?;
        matrix.swap(at, pivot);
        if matrix[at][at].abs() < f64::MIN_POSITIVE {
            return None;
        }
        let lead = matrix[at].clone();
        for line in matrix.iter_mut().skip(at + 1) {
            let factor = line[at] / lead[at];
            for (cell, of_lead) in line.iter_mut().zip(&lead) {
                *cell -= factor * of_lead;
            }
        }
    }
    let mut solved = vec![0.0; terms];
    for at in (0..terms).rev() {
        let known: f64 = (at + 1..terms).map(|other| matrix[at][other] * solved[other]).sum();
        solved[at] = (matrix[at][terms] - known) / matrix[at][at];
    }
    solved.iter().all(|value| value.is_finite()).then_some(solved)
}
