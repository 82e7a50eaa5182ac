//! The command line of a role, made of a module's words.

use super::place::PodPlace;
use super::table::{FlagRule, ModuleRule, TABLE, Unlisted};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Subject and reason of something that has no counterpart.
pub(super) type Lost = (String, String);

/// Command line under construction.
pub(super) struct RoleLine<'a> {
    module: &'static ModuleRule,
    container: Value,
    place: &'a PodPlace<'a>,
    /// Flags of the role, each once.
    words: Vec<String>,
    /// Flags of the engine.
    engine: Vec<String>,
    /// Flags of the module that the command line has, by their names in the table.
    seen: BTreeSet<String>,
    lost: Vec<Lost>,
}

impl<'a> RoleLine<'a> {
    pub(super) fn new(
        module: &'static ModuleRule,
        container: &Value,
        place: &'a PodPlace<'a>,
    ) -> Self {
        let mut words: Vec<_> =
            module.engine.iter().map(|engine| format!("--engine={engine}")).collect();
        for word in &module.words {
            match word.as_str() {
                "$scaled" => words.extend(place.scaled.iter().cloned()),
                word => words.push(word.replace("$discovery", &place.discovery)),
            }
        }
        let (engine, lost) = (Vec::new(), Vec::new());
        let container = container.clone();
        Self { module, container, place, words, engine, seen: BTreeSet::new(), lost }
    }

    /// Takes the module's words.
    pub(super) fn take(&mut self, words: &[String]) {
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let (flag, joined) = match word.split_once('=') {
                Some((flag, value)) => (flag, Some(value.to_owned())),
                None => (word.as_str(), None),
            };
            let name = flag.trim_start_matches('-');
            match TABLE.flag(self.module, name) {
                Some(rule) if flag.starts_with("--") => {
                    self.seen.insert(name.replace('_', "-"));
                    let mut value = joined;
                    if value.is_none() && rule.switch.is_none() {
                        value = words.next_if(|next| !is_flag(next)).cloned();
                    }
                    self.follow(flag, rule, &value.unwrap_or_default());
                    // Further values of a flag that takes one.
                    while let Some(next) = words.next_if(|next| !is_flag(next)) {
                        self.lose(flag, &format!("the value {next:?} has no counterpart"));
                    }
                }
                _ => {
                    let mut rest = vec![word.clone()];
                    while let Some(next) = words.next_if(|next| !is_flag(next)) {
                        rest.push(next.clone());
                    }
                    self.unlisted(flag, rest);
                }
            }
        }
    }

    /// Takes flags that variables of the container give, and that the command line does not.
    pub(super) fn take_environment(&mut self) {
        let module = self.module;
        for (variable, name) in &module.env {
            let given = self.variable(variable).map(|given| match given.get("value") {
                Some(value) => value.as_str().unwrap_or_default().to_owned(),
                None => format!("$({variable})"),
            });
            let given = given.filter(|_| !self.seen.contains(name));
            if let (Some(value), Some(rule)) = (given, TABLE.flag(module, name)) {
                self.follow(variable, rule, &value);
            }
        }
    }

    /// Adds a word of the role. A word of the same flag gives way.
    pub(super) fn add(&mut self, word: &str) {
        self.words.retain(|known| flag_of(known) != flag_of(word));
        self.words.push(word.to_owned());
    }

    /// Whether the role has a word of this flag.
    fn has(&self, flag: &str) -> bool {
        self.words.iter().any(|word| flag_of(word) == flag)
    }

    /// The role, its words with the engine's after `--`, and what was lost.
    pub(super) fn finish(self) -> (String, Vec<String>, Vec<Lost>) {
        let mut words = self.words;
        if !self.engine.is_empty() {
            words.push("--".to_owned());
            words.extend(self.engine);
        }
        (self.module.role.clone().unwrap_or_default(), words, self.lost)
    }

    fn lose(&mut self, subject: &str, why: &str) {
        self.lost.push((subject.to_owned(), why.to_owned()));
    }

    fn unlisted(&mut self, flag: &str, words: Vec<String>) {
        match self.module.unlisted {
            Unlisted::Engine => self.engine.extend(words),
            Unlisted::Role => self.words.extend(words),
            Unlisted::Nobody => self.lose(flag, "stator has no such setting"),
        }
    }

    /// Follows the keys of a value that is an object of JSON.
    fn follow_keys(&mut self, subject: &str, keys: &BTreeMap<String, FlagRule>, value: &str) {
        let Ok(Value::Object(given)) = serde_json::from_str(value) else {
            return self.lose(subject, "it is read where it is JSON, and not from a file");
        };
        for (key, value) in given.into_iter().filter(|(_, value)| !value.is_null()) {
            let subject = format!("{subject}: {key}");
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match keys.get(&key) {
                Some(rule) => self.follow(&subject, rule, &value),
                None => self.lose(&subject, "stator has no such setting"),
            }
        }
    }

    fn follow(&mut self, subject: &str, rule: &FlagRule, value: &str) {
        if !rule.keys.is_empty() {
            return self.follow_keys(subject, &rule.keys, value);
        }
        if rule.off.as_deref() == Some(value) {
            return;
        }
        let is_settled = rule.unless.as_deref().is_some_and(|flag| self.has(flag));
        let refused = rule.refused.iter().find(|(part, _)| value.contains(part.as_str()));
        if let Some((_, why)) = refused.filter(|_| !is_settled) {
            return self.lose(subject, why);
        }
        if let Some(why) = &rule.missing {
            return self.lose(subject, why);
        }
        if let Some(when) = &rule.when {
            if when == value {
                rule.to.iter().for_each(|flag| self.add(flag));
            }
            return;
        }
        let value = match (&rule.switch, &rule.values) {
            (Some(given), _) => given.as_str(),
            (None, None) => value,
            (None, Some(values)) => match values.get(value) {
                Some(ours) if ours.is_empty() => return,
                Some(ours) => ours,
                None => return self.lose(subject, &format!("{value:?} has no counterpart")),
            },
        };
        let word = |flag: &str| match value {
            "" => flag.to_owned(),
            _ => format!("{flag}={value}"),
        };
        match (rule.to.as_deref(), rule.engine.as_deref()) {
            (Some(flag @ ("--model" | "--tokenizer-path")), _) => self.model(subject, flag, value),
            (Some(flag), _) => self.add(&word(flag)),
            (None, Some(flag)) => self.engine.push(word(flag)),
            (None, None) => {}
        }
    }

    /// Adds the model's folder, and its name where the manifest gives no other.
    fn model(&mut self, subject: &str, flag: &str, said: &str) {
        let said = self.literal(said);
        let folder = self.place.substitutes.models.get(&said).cloned();
        let is_folder = said.starts_with(['/', '.', '$']);
        let folder = folder.or_else(|| is_folder.then(|| said.clone()));
        let is_agent = flag == "--model";
        if is_agent
            && !is_folder
            && !self.words.iter().any(|word| word.starts_with("--model-name="))
        {
            self.add(&format!("--model-name={said}"));
        }
        let is_simulated = self.module.engine.as_deref() == Some("sim");
        match folder {
            Some(folder) => self.add(&format!("{flag}={folder}")),
            // The bundled tokenizer does for simulated answers.
            None if is_simulated => {}
            None => {
                if is_agent {
                    self.add(&format!("{flag}={said}"));
                }
                let name = format!("{said:?} is a name on a hub, and its folder is needed");
                self.lose(subject, &format!("{name}: --models {said}=FOLDER"));
            }
        }
    }

    /// The text that a reference to a variable of the container stands for.
    fn literal(&self, said: &str) -> String {
        let name = said.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')'));
        let value = name.and_then(|name| self.variable(name)?["value"].as_str());
        value.unwrap_or(said).to_owned()
    }

    fn variable(&self, name: &str) -> Option<&Value> {
        self.container["env"].as_array()?.iter().find(|variable| variable["name"] == name)
    }
}

/// The flag of a word of ours.
fn flag_of(word: &str) -> &str {
    word.split('=').next().unwrap_or_default()
}

/// Whether a word is a flag rather than a value: `-1` is a value.
fn is_flag(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| {
        !rest.is_empty() && !rest.starts_with(|c: char| c.is_ascii_digit() || c == '.')
    })
}
