//! The program that decides, for each frame that an interface receives, whether a port takes it or the kernel does.
//!
//! It is assembled here from a few instructions, without a compiler. A map holds the data for its decisions:
//!
//! - A *place*, an address and a UDP port, belongs to one port.
//! - A whole *address* belongs to one port: it takes every frame to the address that no place takes, with ARP requests
//!   and neighbour discovery about the address.
//!
//! A frame goes to the socket of the port at the queue on which it arrived. The kernel keeps frames that no port asked
//! for, frames that are cut short, and IPv4 packets with options. The program for a port that takes all frames only
//! redirects them.

pub(crate) mod assembler;
#[cfg(test)]
mod interpreter;

use std::net::IpAddr;

use assembler::{Assembler, Instruction, Jump, Label, Register, Size};

/// Most queues of an interface that can be used.
pub(crate) const QUEUES_MAX: u32 = 64;
/// Most ports of an interface.
pub(crate) const SLOTS_MAX: u32 = 64;

/// Bytes of a key of the map of places.
pub(crate) const KEY_LEN: usize = 20;

/// Value of `XDP_PASS`: the kernel keeps the frame.
const PASS: i32 = 2;
const MAP_LOOKUP: i32 = 1;
const REDIRECT_MAP: i32 = 51;

/// The key of an address and a UDP port, or of a whole address. An IPv4 address is mapped into IPv6.
pub(crate) fn key(address: IpAddr, udp_port: Option<u16>) -> [u8; KEY_LEN] {
    let address = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut key = [0; KEY_LEN];
    key[..16].copy_from_slice(&address.octets());
    if let Some(port) = udp_port {
        key[16..18].copy_from_slice(&port.to_be_bytes());
        key[18] = 1;
    }
    key
}

/// Index of a port's socket at a queue.
pub(crate) fn socket_index(slot: u32, queue: u32) -> [u8; 4] {
    (slot * QUEUES_MAX + queue).to_ne_bytes()
}

// Offsets of the fields in the description of a received frame.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

// Offsets of the fields of a frame.
const ETHER_TYPE: i16 = 12;
const AFTER_ETHERNET: i16 = 14;
const V4_FRAGMENT: i16 = AFTER_ETHERNET + 6;
const V4_PROTOCOL: i16 = AFTER_ETHERNET + 9;
const V4_TO: i16 = AFTER_ETHERNET + 16;
const V4_END: i16 = AFTER_ETHERNET + 20;
const V6_NEXT: i16 = AFTER_ETHERNET + 6;
const V6_TO: i16 = AFTER_ETHERNET + 24;
const V6_END: i16 = AFTER_ETHERNET + 40;
const UDP_TO: i16 = 2;
const UDP_LEN: i16 = 8;
const ARP_TO: i16 = AFTER_ETHERNET + 24;
const ARP_END: i16 = AFTER_ETHERNET + 28;
const ND_TARGET: i16 = V6_END + 8;
const ND_END: i16 = V6_END + 24;

const UDP: i32 = 17;
const ICMP_V6: i32 = 58;
const SOLICITATION: i32 = 135;

/// Place of the key on the stack.
const KEY: i16 = -(KEY_LEN as i16) - 4;

/// A number of two bytes, as a load reads it from a frame.
const fn be16(value: u16) -> i32 {
    value.to_be() as i32
}

/// The program for an interface whose ports take every frame.
pub(crate) fn take_all(sockets: i32) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let pass = code.label();
    let [r0, r1, .., r6, _, _, _] = Register::ALL;
    code.move_register(r6, r1);
    code.move_number(r0, 0);
    redirect(&mut code, sockets, r0, pass);
    finish(code, pass)
}

/// The program for an interface whose ports take the places and addresses in the map `places`.
pub(crate) fn take_places(places: i32, sockets: i32) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let [r0, r1, _, r3, r4, r5, r6, r7, ..] = Register::ALL;
    let [pass, v4, v6, arp, look_up, whole, found, discovery, other_v4, v6_to] = [(); 10].map(|()| code.label());

    code.move_register(r6, r1);
    code.load(Size::Word, r7, r6, DATA);
    code.load(Size::Word, r3, r6, DATA_END);
    needs(&mut code, r7, r3, AFTER_ETHERNET, pass);
    // The key is zero until fields of the frame are copied to it.
    for at in [0, 4, 8, 12, 16] {
        code.store_number(Size::Word, Register::FRAME, KEY + at, 0);
    }
    code.load(Size::Half, r5, r7, ETHER_TYPE);
    code.jump_if(Jump::Equal, r5, be16(0x0800), v4);
    code.jump_if(Jump::Equal, r5, be16(0x86DD), v6);
    code.jump_if(Jump::Equal, r5, be16(0x0806), arp);
    code.jump(pass);

    code.place(v4);
    needs(&mut code, r7, r3, V4_END, pass);
    code.load(Size::Byte, r5, r7, AFTER_ETHERNET);
    code.jump_if(Jump::NotEqual, r5, 0x45, pass);
    code.load(Size::Word, r5, r7, V4_TO);
    mapped_address(&mut code, r5);
    code.load(Size::Byte, r5, r7, V4_PROTOCOL);
    code.jump_if(Jump::NotEqual, r5, UDP, other_v4);
    // Only the first fragment of a packet has the UDP port.
    code.load(Size::Half, r5, r7, V4_FRAGMENT);
    code.and_number(r5, be16(0x1FFF));
    code.jump_if(Jump::NotEqual, r5, 0, other_v4);
    udp_port(&mut code, [r7, r3, r5], V4_END, pass);
    code.jump(look_up);

    code.place(v6);
    needs(&mut code, r7, r3, V6_END, pass);
    code.load(Size::Byte, r5, r7, V6_NEXT);
    code.jump_if(Jump::Equal, r5, ICMP_V6, discovery);
    v6_address(&mut code, [r7, r4], V6_TO);
    code.jump_if(Jump::NotEqual, r5, UDP, whole);
    udp_port(&mut code, [r7, r3, r5], V6_END, pass);
    code.jump(look_up);

    // Neighbour solicitations go to a multicast address, and name the address that they ask about.
    code.place(discovery);
    needs(&mut code, r7, r3, ND_END, v6_to);
    code.load(Size::Byte, r5, r7, V6_END);
    code.jump_if(Jump::NotEqual, r5, SOLICITATION, v6_to);
    v6_address(&mut code, [r7, r4], ND_TARGET);
    code.jump(whole);
    code.place(v6_to);
    v6_address(&mut code, [r7, r4], V6_TO);
    code.jump(whole);

    code.place(arp);
    needs(&mut code, r7, r3, ARP_END, pass);
    code.load(Size::Word, r5, r7, ARP_TO);
    mapped_address(&mut code, r5);
    code.place(other_v4);
    code.jump(whole);

    code.place(look_up);
    lookup(&mut code, places);
    code.jump_if(Jump::NotEqual, r0, 0, found);
    code.place(whole);
    code.store_number(Size::Word, Register::FRAME, KEY + 16, 0);
    lookup(&mut code, places);
    code.jump_if(Jump::Equal, r0, 0, pass);
    code.place(found);
    code.load(Size::Word, r1, r0, 0);
    code.move_register(r0, r1);
    redirect(&mut code, sockets, r0, pass);
    finish(code, pass)
}

/// Jumps to `otherwise` unless the frame has `len` bytes.
fn needs(code: &mut Assembler, data: Register, end: Register, len: i16, otherwise: Label) {
    let scratch = Register::ALL[4];
    code.move_register(scratch, data);
    code.add_number(scratch, len.into());
    code.jump_if_register(Jump::Greater, scratch, end, otherwise);
}

/// Puts an IPv4 address into the key.
fn mapped_address(code: &mut Assembler, address: Register) {
    code.store_number(Size::Word, Register::FRAME, KEY + 8, u32::to_be(0xFFFF) as i32);
    code.store(Size::Word, Register::FRAME, KEY + 12, address);
}

/// Puts an IPv6 address into the key.
fn v6_address(code: &mut Assembler, [data, scratch]: [Register; 2], at: i16) {
    for word in [0, 4, 8, 12] {
        code.load(Size::Word, scratch, data, at + word);
        code.store(Size::Word, Register::FRAME, KEY + word, scratch);
    }
}

/// Puts the destination port of a UDP header into the key.
fn udp_port(code: &mut Assembler, [data, end, scratch]: [Register; 3], header: i16, otherwise: Label) {
    needs(code, data, end, header + UDP_LEN, otherwise);
    code.load(Size::Half, scratch, data, header + UDP_TO);
    code.store(Size::Half, Register::FRAME, KEY + 16, scratch);
    code.store_number(Size::Byte, Register::FRAME, KEY + 18, 1);
}

fn lookup(code: &mut Assembler, map: i32) {
    let [_, r1, r2, ..] = Register::ALL;
    code.load_map(r1, map);
    code.move_register(r2, Register::FRAME);
    code.add_number(r2, KEY.into());
    code.call(MAP_LOOKUP);
}

/// Redirects the frame to the socket of a slot at the queue by which it came.
fn redirect(code: &mut Assembler, sockets: i32, slot: Register, pass: Label) {
    let [_, r1, r2, r3, .., r6, _, _, _] = Register::ALL;
    code.load(Size::Word, r2, r6, RX_QUEUE);
    code.jump_if(Jump::Greater, r2, QUEUES_MAX as i32 - 1, pass);
    code.shift_left(slot, QUEUES_MAX.trailing_zeros() as i32);
    code.add_register(r2, slot);
    code.load_map(r1, sockets);
    // The verdict if there is no socket.
    code.move_number(r3, PASS);
    code.call(REDIRECT_MAP);
    code.exit();
}

fn finish(mut code: Assembler, pass: Label) -> Vec<Instruction> {
    code.place(pass);
    code.move_number(Register::ALL[0], PASS);
    code.exit();
    code.finish()
}

#[cfg(test)]
mod tests;
