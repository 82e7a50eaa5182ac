//! Any bytes on an ext-proc stream, wherever they are cut, end with a status, and the cuts make
//! no difference.
//!
//! An input is a byte for how often to cut, then what comes.

use crate::cut;
use crate::stream::{Script, answered};
use stator_epp::exchange::Interest;
use stator_epp::ext_proc::ExtProcSettings;

const SCRIPT: Script = Script { refuses: false, interest: Interest::Body };
/// Done, an invalid argument, too large a message, or not implemented.
const STATUSES: [i32; 4] = [0, 3, 8, 12];

/// Runs the target.
pub(crate) fn run(input: &[u8]) {
    let Some((size, bytes)) = input.split_first() else { return };
    let settings = ExtProcSettings { max_message_bytes: 1 << 20, ..ExtProcSettings::default() };
    let chunks = answered(SCRIPT, settings.clone(), cut(bytes, &[*size]));
    assert!(STATUSES.contains(&chunks.status), "status {}", chunks.status);
    let whole = answered(SCRIPT, settings, vec![bytes.to_vec().into()]);
    assert_eq!((chunks.status, chunks.answers), (whole.status, whole.answers));
}
