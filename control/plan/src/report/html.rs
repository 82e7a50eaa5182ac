//! The plans as one page.

use super::table;
use crate::manifest;
use crate::replay::ReplayedPlan;
use crate::request::PlanRequest;
use crate::search::TradePoint;
use stator_report::{Axis, Layer, Page, Plot, Scale, Shape};

/// The page of some plans, the best first.
pub(crate) fn html(request: &PlanRequest, plans: &[ReplayedPlan], front: &[TradePoint]) -> String {
    let mut page = Page::new(&format!("{} on {}", request.model_name, request.gpu.name));
    page.table("Layouts that hold the targets", &table::table(request, plans));
    if let Some(best) = plans.first() {
        page.note(&table::notes(request, best));
        page.text(&manifest::commands(request, &best.layout));
    }
    page.plots([trade(front)]);
    page.note("Each point is an aggregated worker at one batch, by the closed form; no other is better in both.");
    page.facts("Model", facts(request));
    page.finish()
}

fn trade(front: &[TradePoint]) -> Plot<'static> {
    let points: Vec<(f64, f64)> =
        front.iter().map(|point| (point.user_tokens_s, point.gpu_tokens_s)).collect();
    Plot {
        title: "Throughput against speed".to_owned(),
        x: Axis {
            label: "tokens per second of one answer",
            scale: Scale::linear(points.iter().map(|point| point.0)),
        },
        y: Axis {
            label: "tokens per second and GPU",
            scale: Scale::linear(points.iter().map(|point| point.1)),
        },
        layers: vec![Layer { name: "", colour: 0, shape: Shape::Line(points) }],
    }
}

fn facts(request: &PlanRequest) -> Vec<(&'static str, String)> {
    let model = &request.model;
    let mut facts = vec![
        ("Weights", format!("{:.1} billion", model.parameters() / 1e9)),
        ("Format of weights, KV", format!("{}, {}", model.weights.name(), request.kv.name())),
        ("Bytes of weights", format!("{:.1} GB", model.weight_bytes() / 1e9)),
        ("KV of a token", format!("{:.0} bytes", model.kv_numbers(1.0) * request.kv.bytes())),
    ];
    if let Some(experts) = model.experts {
        facts.push(("Experts", format!("{} of {} a token", experts.active, experts.count)));
    }
    facts
}
