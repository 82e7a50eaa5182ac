//! Workers' profiles, translated from their agents' records into the words of placement.

use crate::constraint::{Adapter, Label, Profile, Role, Topology};
use stator_protos::discovery::{self, ProfileRecord};

/// Label of workers whose engine makes vectors of prompts.
pub const EMBEDS: &str = "stator/embeds";
/// Label of workers whose engine makes the probabilities of classes of prompts.
pub const CLASSIFIES: &str = "stator/classifies";
/// Label of workers whose engine answers prompts.
pub const ANSWERS: &str = "stator/answers";
/// Label of workers whose engine ends thoughts that are too long.
pub const BOUNDS_THOUGHTS: &str = "stator/bounds-thoughts";
/// Label of workers that keep prompts cached for a time.
pub const PINS: &str = "stator/pins";

/// The placement profile of an agent's workers.
pub fn profile(record: &ProfileRecord) -> Profile {
    Profile {
        role: role(record),
        labels: labels(record),
        topology: topology(record),
        adapters: record.adapters.iter().map(|name| Adapter::new(name)).collect(),
        max_adapters: record.max_adapters,
        // Adapters are loaded by operators, never because a request asks for one.
        fixed_adapters: true,
        batch_tokens: record.batch_tokens,
        lends: record.kv_transfer.as_deref().map(Label::new),
    }
}

/// Whether such workers are of use to anybody: one that computes prompts is not, as long as it
/// does not say how others get the KV.
pub fn is_usable(record: &ProfileRecord) -> bool {
    record.role != discovery::Role::Prefill || record.handover.is_some()
}

/// Whether such workers do only a part of a request.
pub fn is_partial(record: &ProfileRecord) -> bool {
    matches!(record.role, discovery::Role::Prefill | discovery::Role::Decode)
}

/// Whether such workers answer requests.
pub fn answers(record: &ProfileRecord) -> bool {
    role(record).answers()
}

fn role(record: &ProfileRecord) -> Role {
    match record.role {
        discovery::Role::Aggregated => Role::Aggregated,
        discovery::Role::Prefill => Role::Prefill,
        discovery::Role::Decode if record.needs_prefill => Role::DecodeOnly,
        discovery::Role::Decode => Role::Decode,
        discovery::Role::Encode => Role::Encode,
    }
}

/// The parts of the fleet that the workers stand in, the smallest first.
fn places(record: &ProfileRecord) -> [(&'static str, Option<&str>); 3] {
    [
        ("host", record.host.as_deref()),
        ("rack", record.rack.as_deref()),
        ("zone", record.zone.as_deref()),
    ]
}

/// The record's own labels, where the workers stand, as `zone=a` and as Dynamo writes it, and what
/// their engine does beside answering.
///
/// Source: Dynamo's canonical taints, `dynamo.topology/<domain>=<value>`.
fn labels(record: &ProfileRecord) -> Vec<Label> {
    let own = record.labels.iter().map(|text| Label::new(text));
    let places = places(record).into_iter().filter_map(|(name, value)| Some((name, value?)));
    let stands = places.flat_map(|(name, value)| {
        [format!("{name}={value}"), format!("dynamo.topology/{name}={value}")]
    });
    let abilities = [
        (EMBEDS, record.embeds),
        (CLASSIFIES, record.classifies),
        (ANSWERS, !record.only_pools),
        (BOUNDS_THOUGHTS, record.bounds_thoughts),
        (PINS, record.pins),
    ];
    let able = abilities.into_iter().filter(|(_, able)| *able).map(|(name, _)| Label::new(name));
    own.chain(stands.map(|text| Label::new(&text))).chain(able).collect()
}

/// Each part is named together with those around it: `rack 1` of two zones are two racks.
fn topology(record: &ProfileRecord) -> Topology {
    let places = places(record);
    let path = |from: usize| {
        places[from].1?;
        // Names of places have no line breaks, so that two paths are never one text.
        let parts = places[from..].iter().map(|(_, value)| value.unwrap_or_default());
        Some(Label::new(&parts.collect::<Vec<_>>().join("\n")))
    };
    Topology { host: path(0), rack: path(1), zone: path(2) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::Level;

    fn at(host: Option<&str>, rack: Option<&str>, zone: Option<&str>) -> ProfileRecord {
        let own = |text: Option<&str>| text.map(str::to_owned);
        ProfileRecord {
            host: own(host),
            rack: own(rack),
            zone: own(zone),
            ..ProfileRecord::default()
        }
    }

    #[track_caller]
    fn check_shared(one: &ProfileRecord, other: &ProfileRecord, shared: Option<Level>) {
        assert_eq!(topology(one).shared(&topology(other)), shared);
    }

    #[test]
    fn a_record_without_a_profile_does_everything_anywhere() {
        let told = profile(&ProfileRecord::default());
        let labels = vec![Label::new(ANSWERS)];
        assert_eq!(told, Profile { labels, fixed_adapters: true, ..Profile::default() });
    }

    #[test]
    fn places_are_told_apart_by_all_their_names() {
        let here = at(Some("h"), Some("1"), Some("a"));
        check_shared(&here, &here, Some(Level::Host));
        check_shared(&here, &at(Some("i"), Some("1"), Some("a")), Some(Level::Rack));
        check_shared(&here, &at(Some("h"), Some("2"), Some("a")), Some(Level::Zone));
        check_shared(&here, &at(Some("h"), Some("1"), Some("b")), None);
        check_shared(&at(Some("h"), None, None), &at(Some("h"), None, None), Some(Level::Host));
        check_shared(&ProfileRecord::default(), &ProfileRecord::default(), None);
    }

    #[test]
    fn requests_can_ask_for_labels_and_for_places() {
        let record =
            ProfileRecord { labels: vec!["pool=batch".into()], ..at(None, None, Some("a")) };
        let wanted = ["pool=batch", "zone=a", "dynamo.topology/zone=a", ANSWERS].map(Label::new);
        assert_eq!(labels(&record), wanted);
    }

    #[test]
    fn what_an_engine_does_is_a_label() {
        let pools = ProfileRecord { only_pools: true, ..ProfileRecord::default() };
        let embeds = ProfileRecord { embeds: true, ..pools.clone() };
        let classifies = ProfileRecord { classifies: true, ..pools.clone() };
        assert_eq!(labels(&pools), []);
        assert_eq!(labels(&embeds), [Label::new(EMBEDS)]);
        assert_eq!(labels(&classifies), [Label::new(CLASSIFIES)]);
        let both = ProfileRecord { embeds: true, ..ProfileRecord::default() };
        assert_eq!(labels(&both), [EMBEDS, ANSWERS].map(Label::new));
    }

    #[test]
    fn a_decode_worker_that_needs_prefill_is_known_as_one() {
        let told = |role, needs_prefill| {
            profile(&ProfileRecord { role, needs_prefill, ..ProfileRecord::default() }).role
        };
        assert_eq!(told(discovery::Role::Decode, true), Role::DecodeOnly);
        assert_eq!(told(discovery::Role::Decode, false), Role::Decode);
        assert!(answers(&ProfileRecord {
            role: discovery::Role::Decode,
            needs_prefill: true,
            ..ProfileRecord::default()
        }));
    }

    #[test]
    fn who_computes_prompts_must_say_how_their_kv_is_had() {
        for (role, silent) in [
            (discovery::Role::Aggregated, true),
            (discovery::Role::Prefill, false),
            (discovery::Role::Decode, true),
            (discovery::Role::Encode, true),
        ] {
            let record = ProfileRecord { role, ..ProfileRecord::default() };
            assert_eq!(is_usable(&record), silent, "{role:?}");
            assert!(is_usable(&ProfileRecord { handover: Some("{}".into()), ..record }));
        }
    }
}
