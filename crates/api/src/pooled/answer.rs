//! Answers that are made of vectors.

use super::{PooledForm, PoolingTask, RankingForm, VectorForm};
use crate::delta::Identity;
use crate::openai::ApiError;
use crate::openai::escape::{push_f32, push_int, push_json_str};
use crate::openai::logprobs::push_list;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use stator_body::Api;

/// Writes the answer of a request: `vectors` has one for each of its inputs, in their order, and
/// `prompt_tokens` are the tokens of all.
///
/// # Errors
///
/// 400 for more dimensions than the vectors have, and 500 for inputs without a vector.
pub fn answer(
    form: &PooledForm,
    identity: &Identity<'_>,
    mut vectors: Vec<Vec<f32>>,
    prompt_tokens: u32,
) -> Result<Vec<u8>, ApiError> {
    if let PooledForm::Vectors(VectorForm { dimensions: Some(dimensions), .. }) = form {
        shorten(&mut vectors, *dimensions as usize)?;
    }
    if !form.is_of_classes() {
        vectors.iter_mut().for_each(|vector| normalise(vector));
    }
    let mut out = Vec::new();
    match form {
        PooledForm::Vectors(form) => push_vectors(&mut out, *form, identity, &vectors),
        PooledForm::Scores { pairs } => {
            let score =
                |(one, other): &(usize, usize)| Some(dot(vectors.get(*one)?, vectors.get(*other)?));
            let scores: Option<Vec<f32>> = pairs.iter().map(score).collect();
            push_scores(&mut out, identity, &scores.ok_or_else(ApiError::internal)?);
        }
        PooledForm::Ranking(form) => push_ranking(&mut out, form, identity, &vectors)?,
        PooledForm::Classes { labels } => push_classes(&mut out, labels, identity, &vectors),
    }
    out.extend_from_slice(b"\"usage\":{\"prompt_tokens\":");
    push_int(&mut out, prompt_tokens);
    out.extend_from_slice(b",\"total_tokens\":");
    push_int(&mut out, prompt_tokens);
    out.extend_from_slice(b"}}");
    Ok(out)
}

impl PooledForm {
    /// Whether the values are the probabilities of classes.
    pub fn is_of_classes(&self) -> bool {
        match self {
            Self::Vectors(form) => form.task == Some(PoolingTask::Classify),
            Self::Classes { .. } => true,
            Self::Scores { .. } | Self::Ranking(_) => false,
        }
    }
}

fn shorten(vectors: &mut [Vec<f32>], dimensions: usize) -> Result<(), ApiError> {
    for vector in vectors {
        if dimensions > vector.len() {
            let length = vector.len();
            let message = format!("dimensions is {dimensions}, the model's vectors have {length}");
            return Err(ApiError::invalid("dimensions", message));
        }
        vector.truncate(dimensions);
    }
    Ok(())
}

/// Gives a vector unit length; one of zeros stays.
fn normalise(vector: &mut [f32]) {
    let square: f64 = vector.iter().map(|value| f64::from(*value).powi(2)).sum();
    if square > 0.0 {
        let length = square.sqrt();
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
}

/// The cosine of the angle between two vectors of unit length.
fn dot(one: &[f32], other: &[f32]) -> f32 {
    let products = one.iter().zip(other).map(|(one, other)| f64::from(*one) * f64::from(*other));
    products.sum::<f64>().clamp(-1.0, 1.0) as f32
}

fn push_vectors(
    out: &mut Vec<u8>,
    form: VectorForm,
    identity: &Identity<'_>,
    vectors: &[Vec<f32>],
) {
    let (object, member) = match form.api {
        Api::Pooling => ("pooling", "data"),
        _ => ("embedding", "embedding"),
    };
    out.push(b'{');
    if form.api == Api::Pooling {
        push_identity(out, "pool-", identity);
    }
    out.extend_from_slice(b"\"object\":\"list\",\"data\":");
    let numbered: Vec<_> = vectors.iter().enumerate().collect();
    push_list(out, &numbered, |out, (index, vector)| {
        out.extend_from_slice(b"{\"object\":\"");
        out.extend_from_slice(object.as_bytes());
        out.extend_from_slice(b"\",\"index\":");
        push_int(out, *index);
        out.extend_from_slice(b",\"");
        out.extend_from_slice(member.as_bytes());
        out.extend_from_slice(b"\":");
        match form.is_base64 {
            true => push_base64(out, vector),
            false => push_list(out, vector, |out, value| push_f32(out, *value)),
        }
        out.push(b'}');
    });
    push_model(out, identity);
}

fn push_classes(
    out: &mut Vec<u8>,
    labels: &[String],
    identity: &Identity<'_>,
    vectors: &[Vec<f32>],
) {
    out.push(b'{');
    push_identity(out, "classify-", identity);
    out.extend_from_slice(b"\"object\":\"list\",\"data\":");
    let numbered: Vec<_> = vectors.iter().enumerate().collect();
    push_list(out, &numbered, |out, (index, probabilities)| {
        out.extend_from_slice(b"{\"index\":");
        push_int(out, *index);
        out.extend_from_slice(b",\"label\":");
        match most_likely(probabilities).and_then(|class| labels.get(class)) {
            Some(label) => push_json_str(out, label),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(b",\"probs\":");
        push_list(out, probabilities, |out, value| push_f32(out, *value));
        out.extend_from_slice(b",\"num_classes\":");
        push_int(out, probabilities.len());
        out.push(b'}');
    });
    push_model(out, identity);
}

/// The number of the class with the highest probability, the first of several.
fn most_likely(probabilities: &[f32]) -> Option<usize> {
    let numbered = probabilities.iter().enumerate().rev();
    numbered.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(class, _)| class)
}

/// The bytes of the values, little end first, in the standard alphabet with padding.
fn push_base64(out: &mut Vec<u8>, vector: &[f32]) {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    out.push(b'"');
    out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
    out.push(b'"');
}

fn push_scores(out: &mut Vec<u8>, identity: &Identity<'_>, scores: &[f32]) {
    out.push(b'{');
    push_identity(out, "score-", identity);
    out.extend_from_slice(b"\"object\":\"list\",\"data\":");
    let numbered: Vec<_> = scores.iter().enumerate().collect();
    push_list(out, &numbered, |out, (index, score)| {
        out.extend_from_slice(b"{\"index\":");
        push_int(out, *index);
        out.extend_from_slice(b",\"object\":\"score\",\"score\":");
        push_f32(out, **score);
        out.push(b'}');
    });
    push_model(out, identity);
}

fn push_ranking(
    out: &mut Vec<u8>,
    form: &RankingForm,
    identity: &Identity<'_>,
    vectors: &[Vec<f32>],
) -> Result<(), ApiError> {
    let (query, documents) = vectors.split_first().ok_or_else(ApiError::internal)?;
    let mut ranking: Vec<_> =
        documents.iter().map(|document| dot(query, document)).enumerate().collect();
    // Equal scores keep the client's order.
    ranking.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    ranking.truncate(form.top_n.unwrap_or(usize::MAX));
    out.extend_from_slice(b"{\"id\":");
    push_json_str(out, &format!("rerank-{}", identity.id));
    out.extend_from_slice(b",\"results\":");
    push_list(out, &ranking, |out, (index, score)| {
        out.extend_from_slice(b"{\"index\":");
        push_int(out, *index);
        let text = form.documents.as_ref().and_then(|documents| documents.get(*index));
        if let Some(text) = text {
            out.extend_from_slice(b",\"document\":{\"text\":");
            push_json_str(out, text);
            out.push(b'}');
        }
        out.extend_from_slice(b",\"relevance_score\":");
        push_f32(out, *score);
        out.push(b'}');
    });
    push_model(out, identity);
    Ok(())
}

/// Appends what answers of vLLM's own APIs begin with.
fn push_identity(out: &mut Vec<u8>, prefix: &str, identity: &Identity<'_>) {
    out.extend_from_slice(b"\"id\":");
    push_json_str(out, &format!("{prefix}{}", identity.id));
    out.extend_from_slice(b",\"created\":");
    push_int(out, identity.created);
    out.push(b',');
}

fn push_model(out: &mut Vec<u8>, identity: &Identity<'_>) {
    out.extend_from_slice(b",\"model\":");
    push_json_str(out, identity.model);
    out.push(b',');
}
