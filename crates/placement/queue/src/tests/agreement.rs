//! The queue answers as its obvious model does.

use super::model::Model;
use super::ms;
use crate::{
    BandPolicy, BandSettings, Bounds, CheckedSettings, Fairness, FlowId, HeadOfLine, Ordering,
    QueueEntry, QueueSettings, QueueTicket, Queues, Verdict,
};
use proptest::{collection::vec, option, prelude::*};
use std::collections::HashMap;

#[derive(Clone, Debug)]
enum Step {
    Push(QueueEntry<u32>),
    /// The salt decides what becomes of heads.
    Pop(u32),
    Cancel(prop::sample::Index),
    Charge(i32, u64, u64),
    /// Milliseconds go by, and deadlines with them.
    Pass(u64),
}

fn any_entry() -> impl Strategy<Value = QueueEntry<u32>> {
    let tokens = prop_oneof![4 => 0..40u32, 1 => 40..200u32];
    let times = (option::of(0..400u64), option::of(0..300u64));
    let priority = prop_oneof![3 => Just(0), 1 => -12..12i32];
    (priority, 0..4u64, tokens, 0..20u64, times, 0..4u32).prop_map(
        |(priority, flow, tokens, bytes, (deadline, objective), jump)| QueueEntry {
            priority,
            flow: FlowId(flow),
            tokens,
            bytes,
            deadline: deadline.map(ms),
            objective: objective.map(ms),
            jump,
            payload: 0,
        },
    )
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => any_entry().prop_map(Step::Push),
        4 => any::<u32>().prop_map(Step::Pop),
        2 => any::<prop::sample::Index>().prop_map(Step::Cancel),
        1 => (0..3i32, 0..4u64, 0..100u64)
            .prop_map(|(band, flow, tokens)| Step::Charge((band - 1) * 10, flow, tokens)),
        2 => (0..20u64).prop_map(Step::Pass),
    ]
}

fn any_policy() -> impl Strategy<Value = BandPolicy> {
    let fairness = prop_oneof![
        Just(Fairness::GlobalStrict),
        Just(Fairness::RoundRobin),
        (1..40u32).prop_map(|quantum_tokens| Fairness::Drr { quantum_tokens }),
        (1..3u32, 0..3u32).prop_map(|(input_weight, output_weight)| Fairness::Vtc {
            input_weight,
            output_weight
        }),
        (0..3u32, 0..3u32, 1..50u64).prop_map(|(service_weight, wait_weight, half_life)| {
            let (half_life, idle) = (ms(half_life), ms(3_600_000));
            Fairness::Las { service_weight, wait_weight, half_life, idle }
        }),
        (0..300_000u32, 1..50u64).prop_map(|(wait_weight, inactivity)| {
            let (inactivity, idle) = (ms(inactivity), ms(3_600_000));
            Fairness::TurnPriority { wait_weight, inactivity, idle }
        }),
    ];
    let ordering = prop_oneof![
        Just(Ordering::Fcfs),
        Just(Ordering::Lcfs),
        Just(Ordering::ShortestPrompt { ageing_tokens_per_s: 1000 }),
        Just(Ordering::WeightedShortest),
        Just(Ordering::Deadline),
        Just(Ordering::SloDeadline),
    ];
    let bounds = (1..40u32, option::of(1..300u64), option::of(1..2000u64))
        .prop_map(|(requests, bytes, tokens)| Bounds { requests, bytes, tokens });
    (bounds, 50..300u64, fairness, ordering).prop_map(|(bounds, ttl, fairness, ordering)| {
        BandPolicy { bounds, ttl: ms(ttl), fairness, ordering }
    })
}

fn any_settings() -> impl Strategy<Value = QueueSettings> {
    let head_of_line = prop_oneof![
        Just(HeadOfLine::Strict),
        (1..20u32).prop_map(|tries| HeadOfLine::Skip { tries }),
    ];
    let total = (1..60u32, option::of(1..400u64), option::of(1..3000u64))
        .prop_map(|(requests, bytes, tokens)| Bounds { requests, bytes, tokens });
    (vec(any_policy(), 3), total, head_of_line, any::<bool>()).prop_map(
        |(policies, total, head_of_line, displace)| QueueSettings {
            bands: (-1..2)
                .zip(policies)
                .map(|(rank, policy)| BandSettings { priority: rank * 10, policy })
                .collect(),
            bands_max: 3,
            total,
            head_of_line,
            displace,
            ttl_max: ms(350),
            ..QueueSettings::default()
        },
    )
}

/// The verdict on a request: the same for both.
fn verdict(salt: u32, payload: u32) -> Verdict {
    let mixed = (salt ^ payload.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b) >> 16;
    match (salt % 8, mixed % 16) {
        // Now and then nothing hinders.
        (0, _) => Verdict::Go,
        // Or nearly everything does.
        (1, 1..) => Verdict::Wait,
        (_, 0..7) => Verdict::Go,
        (_, 7) => Verdict::Leave,
        (_, 8..14) => Verdict::Wait,
        _ => Verdict::Stop,
    }
}

/// Both, side by side.
struct Pair {
    queues: Queues<u32>,
    model: Model,
    tickets: HashMap<u32, QueueTicket>,
    /// Payloads so far.
    count: u32,
}

impl Pair {
    fn new(settings: QueueSettings) -> Self {
        let checked = CheckedSettings::new(settings.clone()).expect("the settings are valid");
        let (queues, model) = (Queues::new(checked), Model::new(settings));
        Self { queues, model, tickets: HashMap::new(), count: 0 }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Push(entry) => self.push(entry),
            Step::Pop(salt) => self.pop(salt),
            Step::Cancel(index) => self.cancel(index),
            Step::Charge(band, flow, tokens) => {
                self.queues.charge(band, FlowId(flow), tokens, self.model.now);
                self.model.charge(band, FlowId(flow), tokens);
                Ok(())
            }
            Step::Pass(time) => {
                self.model.now += ms(time);
                self.expire()
            }
        }
    }

    fn push(&mut self, entry: QueueEntry<u32>) -> Result<(), TestCaseError> {
        let entry = QueueEntry { payload: self.count, ..entry };
        self.count += 1;
        let mut displaced = Vec::new();
        let result = self.queues.push(entry, self.model.now, &mut displaced);
        let (gone, expected) = self.model.push(entry);
        prop_assert_eq!(displaced.iter().map(|gone| gone.payload).collect::<Vec<_>>(), gone);
        let reason = result.as_ref().map(|_| ()).map_err(|rejected| rejected.reason);
        prop_assert_eq!(reason, expected);
        if let Ok(ticket) = result {
            self.tickets.insert(entry.payload, ticket);
        }
        Ok(())
    }

    fn pop(&mut self, salt: u32) -> Result<(), TestCaseError> {
        let (mut offered, mut dispatched) = (Vec::new(), Vec::new());
        let mut asked = |_: &crate::QueueHead, payload: &mut u32| {
            offered.push(*payload);
            verdict(salt, *payload)
        };
        self.queues.pop(self.model.now, &mut asked, &mut dispatched);
        let expected = self.model.pop(|payload| verdict(salt, payload));
        let dispatched = dispatched.iter().map(|gone| gone.payload).collect::<Vec<_>>();
        prop_assert_eq!((offered, dispatched), expected);
        Ok(())
    }

    fn cancel(&mut self, index: prop::sample::Index) -> Result<(), TestCaseError> {
        if self.count == 0 {
            return Ok(());
        }
        let payload = index.index(self.count as usize) as u32;
        let Some(ticket) = self.tickets.get(&payload) else { return Ok(()) };
        let waits = self.model.items.iter().any(|item| item.entry.payload == payload);
        let cancelled = self.queues.cancel(*ticket, self.model.now);
        prop_assert_eq!(cancelled, waits.then_some(payload));
        if waits {
            self.model.remove(payload);
        }
        Ok(())
    }

    fn expire(&mut self) -> Result<(), TestCaseError> {
        let mut evicted = Vec::new();
        self.queues.expire(self.model.now, &mut evicted);
        let evicted = evicted.iter().map(|gone| (gone.payload, gone.reason)).collect::<Vec<_>>();
        prop_assert_eq!(evicted, self.model.expire());
        Ok(())
    }

    /// All that can be seen from outside is alike.
    fn check(&self) -> Result<(), TestCaseError> {
        let stats = self.queues.stats(self.model.now);
        prop_assert_eq!(stats.waiting, self.model.usage(None));
        prop_assert_eq!(self.queues.next_event(), self.model.next_event());
        for band in stats.bands {
            prop_assert_eq!(band.waiting, self.model.usage(Some(band.priority)));
            prop_assert_eq!(band.oldest_wait, self.model.oldest_wait(band.priority));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// Whatever the policies and whatever happens, the same heads are offered in the same order,
    /// the same requests go, and the same are refused and sent away for the same reasons.
    #[test]
    fn agrees_with_a_list_that_is_walked_through(
        settings in any_settings(),
        steps in vec(any_step(), 0..150),
    ) {
        let mut pair = Pair::new(settings);
        for step in &steps {
            pair.step(step)?;
            pair.check()?;
        }
        // In the end all of them go, in the same order.
        pair.pop(0)?;
        prop_assert_eq!(pair.queues.waiting(), crate::QueueUsage::default());
    }
}
