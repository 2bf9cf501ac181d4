//! `sinew model pcie`: what crosses PCI Express for a request.

use serde_json::{Value, json};
use sinew::fabric::verbs::Verb;
use sinew_harness::units::{self, counted};
use sinew_harness::{Figure, Unit, figure};
use sinew_sim::nic::{Crossings, Expected, IMMEDIATE, Post, Profile, Requests, Source};
use sinew_sim::pcie::{Traffic, lines};

use super::request::{self, RequestArgs};
use crate::{output, table};

const HELP: &str = "\
All of this is arithmetic (atc16 2.1, 3.1, 3.2, Figures 2b, 4, 5, 6, Appendix A): packets of PCI Express's transaction
layer, with their headers, when no cache of the NIC misses. Nothing is measured here, and the NIC need not exist.

Sizes, in Figure 2b's table, are those of the data that a core sends to the NIC. A WQE takes whole lines of 64 bytes.
The NIC is assumed to write in packets of 256 bytes. Receives are posted in batches of the same size as the requests.

Examples:
  sinew model pcie                         # a SEND over UD on a Connect-IB
  sinew model pcie --batch 16 --header-only
  sinew model pcie --verb write --transport uc --payload 29 --batch 10
  sinew model pcie --nic cx3 --verb read --payload 256
  sinew model nics cx3 --file > mine.toml
  sinew model pcie --nic mine.toml";

/// Options of `sinew model pcie`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    request: RequestArgs,
    /// Print one JSON object (see docs/results.md)
    #[arg(long)]
    json: bool,
}

/// Sizes of Figure 2b.
const SIZES: [usize; 10] = [4, 16, 32, 64, 96, 128, 192, 256, 512, 1024];

/// Computes, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let nic = args.request.nic()?;
    let requests = args.request.requests(&nic)?;
    if args.json {
        output::print(figure::list(results(&nic, &requests).iter().map(Figure::to_json)))?;
        return Ok(());
    }
    let parts = [
        head(&nic),
        format!("What the link allows\n\n{}", limits(&nic, &requests)),
        format!("Bytes from the core to the NIC (Figure 2b)\n\n{}", sizes(&nic)),
        format!(
            "{}: a WQE of {} B, {}\n{}\n\nAt the requester (Figure 4)\n\n{}",
            request::text(&requests),
            requests.wqe_len(&nic),
            counted(lines(requests.wqe_len(&nic)), "line"),
            request::batch_text(&requests),
            steps(&requests.at_requester(&nic))
        ),
        format!("At the responder\n\n{}", steps(&requests.at_responder(&nic))),
        variants(&nic, &requests),
        sums(&nic, &requests),
    ];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    output::print(parts.join("\n\n"))?;
    Ok(())
}

/// The NIC and its link, in words.
pub fn head(nic: &Profile) -> String {
    let link = nic.pcie.link;
    let generation = link.generation;
    let text = format!(
        "PCIe {}.0 x{}: {:.0} MB/s each way; a header of {} B for a request or a write, of {} B for each {} B of a read's answer.",
        generation.number(),
        link.lanes,
        link.bandwidth_mbps(),
        generation.request_header(),
        generation.completion_header(),
        link.completion_max
    );
    let validated =
        if nic.is_validated { "" } else { "\nThe model was not compared with any published measurement of this NIC." };
    let wrapped = |text: String| units::wrapped(&text, usize::from(table::WIDTH), 0);
    format!("{}\n{}{validated}", wrapped(format!("{}: {}", nic.name, nic.title)), wrapped(text))
}

/// The link's limits: name, description, unit and value of each.
fn link_limits(nic: &Profile, requests: &Requests) -> [(&'static str, String, Unit, f64); 5] {
    let link = nic.pcie.link;
    let len = requests.wqe_len(nic);
    let of = |traffic: Traffic| link.rate_max_mops(traffic) * requests.count as f64;
    let both = |post| Requests { post, ..*requests }.at_requester(nic).sum().traffic;
    let together = if requests.count == 1 { String::new() } else { format!(", {} together", requests.count) };
    [
        ("mmio_lines", "lines of 64 B by MMIO".to_owned(), Unit::Mops, link.mmio_mlines()),
        ("dma_read", "data by DMA reads".to_owned(), Unit::Of("MB/s"), link.dma_read_mbps()),
        (
            "wqe_fetch",
            format!("WQEs of {} by DMA reads", counted(lines(len), "line")),
            Unit::Mops,
            link.wqe_fetch_mops(len),
        ),
        ("by_mmio", "these requests, WQE-by-MMIO".to_owned(), Unit::Mops, of(both(Post::Mmio))),
        ("by_doorbell", format!("these requests, Doorbell{together}"), Unit::Mops, of(both(Post::Doorbell))),
    ]
}

fn limits(nic: &Profile, requests: &Requests) -> String {
    let rows = link_limits(nic, requests).map(|(_, what, unit, value)| vec![what, unit.text(value)]);
    table::of(&["what", "limit"], rows, table::FIGURES)
}

fn sizes(nic: &Profile) -> String {
    let link = nic.pcie.link;
    let rows = SIZES.map(|len| {
        let (mmio, dma) = (link.mmio(len).to_device, link.dma_read(len).to_device);
        vec![
            units::size(len),
            format!("{} B", mmio.bytes),
            mmio.packets.to_string(),
            format!("{} B", dma.bytes),
            dma.packets.to_string(),
        ]
    });
    table::of(&["data", "by MMIO", "packets", "by a DMA read", "packets"], rows, table::FIGURES)
}

fn row(what: &str, crossings: &Crossings) -> Vec<String> {
    let Crossings { mmio_writes, dma_reads, dma_writes, traffic, .. } = crossings;
    vec![
        what.to_owned(),
        (mmio_writes + dma_reads + dma_writes).to_string(),
        format!("{} B", traffic.to_device.bytes),
        format!("{} B", traffic.to_host.bytes),
    ]
}

const HEADS: [&str; 4] = ["step", "times", "to the NIC", "to the host"];

fn steps(expected: &Expected) -> String {
    let mut rows: Vec<Vec<String>> =
        expected.steps().iter().map(|(step, crossings)| row(step.text(), crossings)).collect();
    match rows.len() {
        0 => return "Nothing crosses.".to_owned(),
        1 => {}
        _ => rows.push(row("in all", &expected.sum())),
    }
    table::of(&HEADS, rows, table::FIGURES)
}

/// Savings of each optimisation: the traffic of the same batch with and without it.
fn variants(nic: &Profile, requests: &Requests) -> String {
    let count = requests.count;
    let table = |title: &str, rows: Vec<(&str, Requests)>, expected: fn(&Requests, &Profile) -> Expected| {
        let possible: Vec<_> = rows.into_iter().filter(|(_, requests)| requests.check(nic).is_ok()).collect();
        let rows = possible.iter().map(|(what, requests)| row(what, &expected(requests, nic).sum()));
        let heads = ["of the same batch", HEADS[1], HEADS[2], HEADS[3]];
        format!("{title}\n\n{}", table::of(&heads, rows, table::FIGURES))
    };
    let in_memory = Requests { source: Source::Memory, signaled: count, inline_receive: false, ..*requests };
    let unsignaled = Requests { signaled: 0, ..in_memory };
    let inline = Requests { source: Source::Inline, ..unsignaled };
    let header = Requests { source: Source::Header, len: requests.len.min(IMMEDIATE), ..unsignaled };
    let mut parts = Vec::new();
    if matches!(requests.verb, Verb::Send | Verb::Write | Verb::WriteWithImmediate) {
        let rows = vec![
            ("payload in memory, signaled", in_memory),
            ("unsignaled", unsignaled),
            ("unsignaled, payload inline", inline),
            ("unsignaled, header-only (4 B at most)", header),
        ];
        parts.push(table("What optimisations leave out at the requester (Figure 5)", rows, Requests::at_requester));
    }
    if requests.verb == Verb::Send {
        let rows = vec![
            ("regular RECV", unsignaled),
            ("inline receive", Requests { inline_receive: true, ..unsignaled }),
            ("header-only RECV", header),
        ];
        parts.push(table("And at the responder (Figure 6)", rows, Requests::at_responder));
    }
    parts.join("\n\n")
}

/// The sums of Appendix A.
fn sums(nic: &Profile, requests: &Requests) -> String {
    let (link, count, len) = (nic.pcie.link, requests.count, requests.wqe_len(nic));
    let by_mmio = link.wqes_by_mmio(count, len).to_device.bytes;
    let by_doorbell = link.wqes_by_doorbell(count, len, nic.units.fetch_max).to_device.bytes;
    let text = format!(
        "Appendix A, with N = {count} and D = {len} B: {by_mmio} B to the NIC by WQE-by-MMIO, {by_doorbell} B by Doorbell."
    );
    units::wrapped(&text, usize::from(table::WIDTH), 0)
}

/// A computed value, in the schema of all results.
pub fn result(bench: &str, title: String, unit: Unit, value: f64, setup: Value, details: Value) -> Figure {
    Figure {
        bench: bench.to_owned(),
        title,
        value: Some(value),
        unit,
        slices: Vec::new(),
        compared: None,
        latency: None,
        invalid_because: Vec::new(),
        surroundings: None,
        setup,
        details,
        lines: Vec::new(),
    }
}

fn details(name: &str, what: &str, crossings: &Crossings) -> Value {
    let Crossings { mmio_writes, dma_reads, dma_writes, lines_read, lines_written, traffic } = crossings;
    json!({
        "name": name,
        "what": what,
        "mmio_writes": mmio_writes,
        "dma_reads": dma_reads,
        "dma_writes": dma_writes,
        "lines_read": lines_read,
        "lines_written": lines_written,
        "packets_to_nic": traffic.to_device.packets,
        "bytes_to_nic": traffic.to_device.bytes,
        "packets_to_host": traffic.to_host.packets,
        "bytes_to_host": traffic.to_host.bytes,
    })
}

fn results(nic: &Profile, requests: &Requests) -> Vec<Figure> {
    let setup = Value::Object(request::setup(nic, requests));
    let of =
        |title: &str, unit, value, details| result("model pcie", title.to_owned(), unit, value, setup.clone(), details);
    let mut all: Vec<Figure> = link_limits(nic, requests)
        .into_iter()
        .map(|(name, what, unit, value)| of(&what, unit, value, json!({ "name": name, "what": what })))
        .collect();
    for (side, expected) in [("requester", requests.at_requester(nic)), ("responder", requests.at_responder(nic))] {
        let sum = expected.sum();
        let steps: Vec<Value> = expected
            .steps()
            .iter()
            .map(|(step, crossings)| details(&format!("{step:?}"), step.text(), crossings))
            .collect();
        let mut details = details(side, &format!("what crosses at the {side}"), &sum);
        details["steps"] = steps.into();
        let bytes = sum.traffic.to_device.bytes + sum.traffic.to_host.bytes;
        all.push(of(side, Unit::Of("B"), bytes as f64, details));
    }
    all
}
