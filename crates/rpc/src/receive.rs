//! Handling of a received burst: each packet goes to its role, each request to its handler.

use std::panic::{AssertUnwindSafe, catch_unwind};

use arrayvec::ArrayVec;
use sinew_fabric::{Clock, MAX_BURST, RxBurst, RxPacket};
use sinew_wire::{Header, HeaderError, Kind, Meaning};

use crate::answer::ReadyRequest;
use crate::call::BurstEntry;
use crate::core::Core;
use crate::handlers::Serve;
use crate::sessions::Sessions;
use crate::stats::PacketDrop;

type Batched<'a> = ArrayVec<BurstEntry<'a>, MAX_BURST>;

/// Handles a received burst: answers go to the transmit queue, requests to their handlers.
#[inline(never)]
pub(crate) fn receive_burst(
    core: &mut Core,
    sessions: &mut Sessions,
    service: &mut impl Serve,
    burst: &RxBurst<'_>,
    clock: &impl Clock,
) {
    core.prefetch(burst);
    let mut batched = Batched::new_const();
    let mut packets = burst.packets.iter();
    // A handler that panics loses only its own call: `Call` answers for it during unwinding, and the others go on.
    while packets.len() > 0 {
        let result = catch_unwind(AssertUnwindSafe(|| {
            for packet in packets.by_ref() {
                if !core.shared.config.tuning.batched_clock {
                    core.shared.now_ns = clock.now_ns();
                }
                handle_packet(core, sessions, service, packet, &mut batched);
            }
        }));
        if let Err(payload) = result {
            service.handlers().contain_panic(payload);
        }
    }
    if burst.marked != 0 {
        core.note_marks(burst);
    }
    if !batched.is_empty() {
        service.handlers().run_bursts(core, &mut batched);
    }
}

/// Handles a packet: first as the common case, a packet that is a whole request or response, then as any other.
#[inline(always)]
fn handle_packet<'a>(
    core: &mut Core,
    sessions: &mut Sessions,
    service: &mut impl Serve,
    packet: &'a RxPacket<'a>,
    batched: &mut Batched<'a>,
) {
    if let Some(header) = Header::read_first(packet.head)
        && packet.tail.is_none()
    {
        if header.kind == Kind::Response {
            if core.clients.take_short(&mut core.shared, &header, packet) {
                return;
            }
        } else if let Some((call, mut request)) = core.servers.take_short(&mut core.shared, &header, packet) {
            if header.kind == Kind::RequestWithOptions {
                match core.servers.take_options(core.shared.now_ns, call.id, request) {
                    Some(behind) => request = behind,
                    None => return core.servers.refuse_short(&mut core.shared, call.id, request),
                }
            }
            return service.run_lent(core, call, request, batched);
        }
    }
    handle_other_packet(core, sessions, service, packet, batched);
}

#[inline(never)]
fn handle_other_packet<'a>(
    core: &mut Core,
    sessions: &mut Sessions,
    service: &mut impl Serve,
    packet: &'a RxPacket<'a>,
    batched: &mut Batched<'a>,
) {
    if packet.tail.is_some()
        && let Some(header) = Header::read_first(packet.head)
        && header.kind == Kind::Response
        && core.clients.take_split(&mut core.shared, &header, packet)
    {
        return;
    }
    match route(core, sessions, packet) {
        Ok(None) => {}
        Ok(Some(arrived)) => service.run(core, arrived, batched),
        Err(reason) => drop_packet(core, sessions, packet, reason),
    }
}

fn drop_packet(core: &mut Core, sessions: &mut Sessions, packet: &RxPacket<'_>, reason: PacketDrop) {
    core.shared.stats.count_drop(reason);
    if reason == PacketDrop::WrongVersion {
        return sessions.on_other_version(core, packet);
    }
    if reason == PacketDrop::UnknownSession
        && let Ok(header) = Header::read(packet.head)
        && matches!(header.kind, Kind::Request | Kind::RequestWithOptions | Kind::RequestForResponse | Kind::Cancel)
    {
        core.servers.note_miss(&mut core.shared, header.session, packet.from);
    }
}

/// Gives a packet to its role; returns the request that it completes, if any.
fn route<'a>(
    core: &mut Core,
    sessions: &mut Sessions,
    packet: &'a RxPacket<'a>,
) -> Result<Option<ReadyRequest<'a>>, PacketDrop> {
    let header = Header::read(packet.head).map_err(|error| match error {
        HeaderError::Truncated => PacketDrop::Truncated,
        HeaderError::WrongMagic => PacketDrop::WrongMagic,
        HeaderError::WrongVersion(_) => PacketDrop::WrongVersion,
        HeaderError::UnknownKind(_) => PacketDrop::UnknownKind,
    })?;
    let call = header.call();
    let Core { shared, clients, servers } = core;
    match header.meaning() {
        Meaning::Request { request_type, has_options, part } => {
            return servers.on_request(shared, call, (request_type, has_options, part), packet);
        }
        Meaning::Cancel => servers.on_cancel(shared, call, packet),
        Meaning::Response { residence, part } => clients.on_response(shared, call, (residence, part), packet),
        Meaning::CreditReturn { taken, ahead, is_alone } => {
            clients.on_credit_return(shared, call, (taken, ahead, is_alone), packet)
        }
        Meaning::RequestForResponse { first, count, .. } => {
            servers.on_request_for_response(shared, call, (first, count), packet)
        }
        Meaning::InProgress => clients.on_in_progress(shared, call, packet),
        Meaning::CallError(code) => clients.on_call_error(shared, call, code, packet),
        Meaning::CongestionNotice => clients.on_congestion_notice(shared, call, packet),
        Meaning::Management(_) => sessions.on_management(core, &header, packet),
    }?;
    Ok(None)
}
