//! A first service: it answers in capitals.

use sinew::prelude::*;

const SHOUT: RequestType = RequestType::new(1);

fn main() -> sinew::Result<()> {
    let nexus = Nexus::builder()
        .handle(SHOUT, |call: Call| {
            let reply = call.request().to_ascii_uppercase();
            call.reply(&reply)
        })
        .build()?;
    nexus.serve("shm://shout") // or "udp://0.0.0.0:7000"
}
