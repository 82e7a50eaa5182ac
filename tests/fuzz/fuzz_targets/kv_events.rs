//! Whatever arrives on the event plane is read or refused; what is read survives the wire.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stator_protos::kv_event::{decode, encode};
use stator_protos::load::Load;
use stator_protos::topic::Topic;

fuzz_target!(|frame: &[u8]| {
    let _ = Topic::parse(frame);
    let _ = Load::decode(frame);
    if let Ok(decoded) = decode(frame) {
        let mut again = Vec::new();
        encode(&decoded.batch, &mut again);
        let decoded_again = decode(&again).expect("what we write, we read");
        // Compared as text, because a timestamp may be NaN.
        assert_eq!(format!("{:?}", decoded_again.batch), format!("{:?}", decoded.batch));
    }
});
