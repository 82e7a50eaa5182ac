//! Models: whether the folder has all that engines and tokenizers read, and whole.

use crate::facts::{ModelFacts, WeightContent};
use crate::finding::{Finding, bytes};

/// Advice for weights that are not whole.
const FETCH: &str = "download them again: `hf download` fetches what is missing";

pub(crate) fn check(model: &ModelFacts) -> Vec<Finding> {
    let folder = model.folder.display();
    if let Some(error) = &model.error {
        let advice = "mount the model's folder and let this user read it";
        return vec![Finding::wrong("model", format!("{folder}: {error}"), advice)];
    }
    vec![config(model), tokenizer(model), weights(model)]
}

fn config(model: &ModelFacts) -> Finding {
    let folder = model.folder.display();
    match &model.architectures {
        Some(Ok(names)) => Finding::fine("model", format!("{folder}: {}", names.join(", "))),
        Some(Err(error)) => {
            Finding::wrong("model", format!("{folder}/config.json: {error}"), "download it again")
        }
        None => {
            let says = format!("{folder} has no config.json");
            Finding::wrong("model", says, "name the folder that has it, not the one above")
        }
    }
}

fn tokenizer(model: &ModelFacts) -> Finding {
    match (model.has_tokenizer, model.has_chat_template) {
        (false, _) => Finding::wrong(
            "tokenizer",
            "the folder has no tokenizer.json",
            "convert it: `AutoTokenizer.from_pretrained(FOLDER, use_fast=True).save_pretrained(FOLDER)`",
        ),
        (true, false) => Finding::warning(
            "tokenizer",
            "the folder has no chat template, so chats are refused",
            "put the model's chat_template.jinja beside tokenizer.json",
        ),
        (true, true) => Finding::fine("tokenizer", "tokenizer and chat template are there"),
    }
}

fn weights(model: &ModelFacts) -> Finding {
    let mut faults: Vec<_> =
        model.missing.iter().map(|name| format!("{name} is missing")).collect();
    for file in &model.weights {
        let name = &file.name;
        faults.extend(match &file.content {
            WeightContent::Pointer => Some(format!("{name} is a pointer of Git LFS")),
            WeightContent::Unreadable(error) => Some(format!("{name}: {error}")),
            WeightContent::Declared(declared) if *declared != file.bytes => {
                Some(format!("{name} has {} of {declared} bytes", file.bytes))
            }
            WeightContent::Declared(_) => None,
        });
    }
    if !faults.is_empty() {
        return Finding::wrong("weights", faults.join("; "), FETCH);
    }
    let (files, all) = (model.weights.len(), model.weights.iter().map(|file| file.bytes).sum());
    match files {
        0 => Finding::note(
            "weights",
            "no file is called *.safetensors",
            "the built-in engine needs one; vLLM also reads other forms",
        ),
        files => Finding::fine("weights", format!("{} in {files} files, whole", bytes(all))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::WeightFile;
    use crate::finding::Severity;

    fn model() -> ModelFacts {
        let content = WeightContent::Declared(4 << 30);
        let file = WeightFile { name: "a.safetensors".into(), bytes: 4 << 30, content };
        ModelFacts {
            folder: "/m".into(),
            architectures: Some(Ok(vec!["LlamaForCausalLM".into()])),
            has_tokenizer: true,
            has_chat_template: true,
            weights: vec![file],
            ..ModelFacts::default()
        }
    }

    fn severities(model: &ModelFacts) -> Vec<Severity> {
        check(model).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn a_whole_model_is_fine() {
        let findings = check(&model());
        assert!(findings.iter().all(|finding| finding.severity == Severity::Fine), "{findings:?}");
        assert_eq!(findings[0].says, "/m: LlamaForCausalLM");
        assert_eq!(findings[2].says, "4.0 GiB in 1 files, whole");
    }

    #[test]
    fn what_is_missing_is_named() {
        let nothing = ModelFacts { folder: "/m".into(), ..ModelFacts::default() };
        assert_eq!(severities(&nothing), [Severity::Wrong, Severity::Wrong, Severity::Note]);
        let unreadable = ModelFacts { error: Some("denied".into()), ..model() };
        assert_eq!(severities(&unreadable), [Severity::Wrong]);
        let silent = ModelFacts { has_chat_template: false, ..model() };
        assert_eq!(check(&silent)[1].severity, Severity::Warning);
    }

    #[test]
    fn all_broken_files_are_named_at_once() {
        let mut broken = model();
        broken.missing = vec!["z.safetensors".into()];
        broken.weights[0].bytes = 7;
        let content = WeightContent::Pointer;
        broken.weights.push(WeightFile { name: "b.safetensors".into(), bytes: 130, content });
        let finding = check(&broken).remove(2);
        assert_eq!(finding.severity, Severity::Wrong);
        let expected = "z.safetensors is missing; a.safetensors has 7 of 4294967296 bytes; \
                        b.safetensors is a pointer of Git LFS";
        assert_eq!(finding.says, expected);
    }
}
