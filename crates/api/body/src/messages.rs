//! The fields of engines' gRPC messages, by the names that the list of fields has for them, and
//! their removal.

use crate::allow::{FieldRules, kind_of};
use crate::edit::Change;
use crate::grpc::{FrameError, HEADER_BYTES, Message, Wire, message_in};
use crate::screening::{RemovedKind, Screening};
use crate::span::Span;

/// The largest number of a field.
const NUMBER_MAX: u64 = (1 << 29) - 1;

/// The fields of a message that are known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    fields: &'static [(u64, Part)],
    /// Whether a field that is not among them passes, as parameters of sampling do.
    open: bool,
}

/// The treatment of a field.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    /// Passes: the message is useless without the field.
    Own,
    /// Passes if the list lets this name pass.
    Named(&'static str),
    /// Passes, without those of its own fields that must not.
    Inner(&'static Schema),
}

/// Known methods, by the ends of their paths.
///
/// Source: `vllm_engine.proto` and `sglang_scheduler.proto` of SMG, August 2026. Both name a request
/// in field 1, by which its client aborts it.
const METHODS: [(&str, &Schema); 4] = [
    ("/vllm.grpc.engine.VllmEngine/Generate", &VLLM_GENERATE),
    ("/vllm.grpc.engine.VllmEngine/Embed", &VLLM_EMBED),
    ("/sglang.grpc.scheduler.SglangScheduler/Generate", &SGLANG_GENERATE),
    ("/sglang.grpc.scheduler.SglangScheduler/Embed", &SGLANG_EMBED),
];

const VLLM_GENERATE: Schema = Schema {
    fields: &[
        (1, Part::Own),
        (2, Part::Own),
        (3, Part::Own),
        (4, Part::Own),
        (5, Part::Own),
        (6, Part::Named("kv_transfer_params")),
        (7, Part::Inner(&VLLM_MEDIA)),
        (8, Part::Named("kv_transfer_params")),
        (9, Part::Named("data_parallel_rank")),
        (10, Part::Own),
        (11, Part::Inner(&VLLM_MEDIA)),
    ],
    open: false,
};

const VLLM_EMBED: Schema = Schema { fields: &[(1, Part::Own), (2, Part::Own)], open: false };

/// Media, whose tensors stand in 2 and in the map 3.
const VLLM_MEDIA: Schema = Schema {
    fields: &[(2, Part::Inner(&VLLM_TENSOR)), (3, Part::Inner(&VLLM_TENSOR_ENTRY))],
    open: true,
};

const VLLM_TENSOR_ENTRY: Schema = Schema { fields: &[(2, Part::Inner(&VLLM_TENSOR))], open: true };

/// A tensor: the engine would open shared memory, or ask another host, where it is not in the
/// message itself.
const VLLM_TENSOR: Schema =
    Schema { fields: &[(4, Part::Named("shm")), (5, Part::Named("remote"))], open: true };

const SGLANG_GENERATE: Schema = Schema {
    fields: &[
        (1, Part::Own),
        (2, Part::Own),
        (3, Part::Own),
        (4, Part::Inner(&SGLANG_SAMPLING)),
        (5, Part::Named("return_logprob")),
        (6, Part::Named("logprob_start_len")),
        (7, Part::Named("top_logprobs_num")),
        (8, Part::Named("token_ids_logprob")),
        (9, Part::Named("return_hidden_states")),
        (10, Part::Named("bootstrap_host")),
        (11, Part::Named("custom_logit_processor")),
        // The time of the request, and whether it is logged.
        (12, Part::Own),
        (13, Part::Own),
        (14, Part::Named("input_embeds")),
        (15, Part::Named("lora_path")),
        (16, Part::Named("data_parallel_rank")),
        (17, Part::Own),
        (18, Part::Own),
    ],
    open: false,
};

const SGLANG_SAMPLING: Schema =
    Schema { fields: &[(23, Part::Named("custom_params"))], open: true };

const SGLANG_EMBED: Schema = Schema {
    fields: &[
        (1, Part::Own),
        (2, Part::Own),
        (4, Part::Own),
        (5, Part::Inner(&SGLANG_SAMPLING)),
        (7, Part::Own),
        (8, Part::Named("data_parallel_rank")),
        (9, Part::Own),
        (10, Part::Own),
    ],
    open: false,
};

/// The message of a path, where the path is that of a known method.
pub(crate) fn schema(path: &str) -> Option<&'static Schema> {
    let path = path.trim_end_matches('/');
    METHODS.iter().find(|(end, _)| path.ends_with(end)).map(|(_, schema)| *schema)
}

impl FieldRules {
    /// Finds the fields of a gRPC message that must not reach an engine.
    ///
    /// # Errors
    ///
    /// [`FrameError`] for a body that is not one sound message.
    pub(crate) fn screen_call(
        &self,
        body: &[u8],
        schema: &Schema,
    ) -> Result<Screening, FrameError> {
        let message = message_in(body)?;
        if message.end < body.len() {
            return Err(FrameError::Further(body.len() - message.end));
        }
        let mut screening = Screening::default();
        if let Some(left) = self.strip(body, message, schema, &mut screening)? {
            // It became shorter, and so its length fits.
            let length = (left.len() as u32).to_be_bytes();
            let (length, left) = (length.to_vec().into(), left.into());
            let header = Span { start: 1, end: HEADER_BYTES };
            screening.inner.push(Change { span: header, with: length });
            screening.inner.push(Change { span: message, with: left });
        }
        Ok(screening)
    }

    /// The message without the fields that must not pass; nothing where it stays.
    fn strip(
        &self,
        body: &[u8],
        message: Span,
        schema: &Schema,
        screening: &mut Screening,
    ) -> Result<Option<Vec<u8>>, FrameError> {
        let mut fields = Message::at(body, message);
        let (mut left, mut kept) = (Vec::new(), message.start);
        loop {
            let start = fields.position();
            let Some(field) = fields.next() else { break };
            let ((number, wire), end) = (field?, fields.position());
            if number > NUMBER_MAX {
                // Some readers drop the upper bits.
                return Err(FrameError::Protobuf(start));
            }
            let with = match schema.part(number) {
                Some(Part::Own) => continue,
                Some(Part::Named(name)) if self.allows(name) => continue,
                Some(Part::Named(name)) => {
                    screening.note(name, kind_of(name), None);
                    Vec::new()
                }
                Some(Part::Inner(inner)) => {
                    let Wire::Bytes(span) = wire else { continue };
                    let Some(value) = self.strip(body, span, inner, screening)? else { continue };
                    field_of(number, &value)
                }
                None if schema.open || self.allows_unknown() => continue,
                None => {
                    screening.note(&format!("field {number}"), RemovedKind::Unknown, None);
                    Vec::new()
                }
            };
            left.extend_from_slice(&body[kept..start]);
            left.extend_from_slice(&with);
            kept = end;
        }
        if kept == message.start {
            return Ok(None);
        }
        left.extend_from_slice(&body[kept..message.end]);
        Ok(Some(left))
    }
}

impl Schema {
    fn part(&self, number: u64) -> Option<&Part> {
        self.fields.iter().find(|(known, _)| *known == number).map(|(_, part)| part)
    }
}

/// A field of bytes on the wire.
fn field_of(number: u64, value: &[u8]) -> Vec<u8> {
    let mut field = Vec::with_capacity(value.len() + 12);
    write_varint(number << 3 | 2, &mut field);
    write_varint(value.len() as u64, &mut field);
    field.extend_from_slice(value);
    field
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
