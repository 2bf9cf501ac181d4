//! A first client.

use sinew::prelude::*;

const SHOUT: RequestType = RequestType::new(1);

fn main() -> sinew::Result<()> {
    let mut rpc = Rpc::open("shm://")?; // or "udp://"
    let session = rpc.connect("shm://shout")?;
    println!("{}", rpc.call(session, SHOUT, b"hello")?);
    Ok(())
}
