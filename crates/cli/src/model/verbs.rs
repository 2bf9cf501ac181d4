//! `sinew model verbs`: the counters that a processor should show.

use clap::ValueEnum;
use serde_json::{Value, json};
use sinew::fabric::verbs::{Transport, Verb};
use sinew_harness::units;
use sinew_harness::{Figure, Unit, figure};
use sinew_sim::nic::{Post, Profile, Rates, Requests, Source};

use super::pcie;
use super::request::{self, RequestArgs};
use crate::{Usage, output, table};

const HELP: &str = "\
A processor counts the lines that a NIC reads and writes: PCIeRdCur and PCIeItoM in Intel's terms (atc16 2.1, footnote
2). What it counts beyond the figures printed here is due to misses of the NIC's caches: translations of addresses,
states of queue pairs, WQEs (atc16 3.5). Some processors count a write of part of a line separately, as RFO: add the
two.

With --counted-reads or --counted-writes the difference is printed as well. Count while nothing else on the host uses
a device, and say with --at which end of the requests the host is.

Examples:
  sinew model verbs                # requests of all kinds, each alone
  sinew model verbs --rate 10      # the same, at 10 M/s
  sinew model verbs --verb send --batch 16 --rate 100
  sinew model verbs --verb read --payload 8 --rate 88 --counted-reads 60
  sinew model verbs --nic cx3 --verb write --transport uc --at responder \\
      --rate 30 --counted-writes 30";

/// End of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum End {
    /// Host that posts them
    Requester,
    /// Host that they go to
    Responder,
}

/// Options of `sinew model verbs`.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    #[command(flatten)]
    request: RequestArgs,
    /// Rate of the requests, in millions a second
    #[arg(long, value_name = "M/S", default_value = "1", allow_negative_numbers = true, value_parser = parse_mops)]
    rate: f64,
    /// End of the requests where lines were counted
    #[arg(long, value_enum, default_value = "requester")]
    at: End,
    /// Lines that the processor counted as PCIeRdCur, in millions a second
    #[arg(long, value_name = "M/S", requires = "verb", allow_negative_numbers = true, value_parser = parse_counter)]
    counted_reads: Option<f64>,
    /// Lines that the processor counted as PCIeItoM, in millions a second
    #[arg(long, value_name = "M/S", requires = "verb", allow_negative_numbers = true, value_parser = parse_counter)]
    counted_writes: Option<f64>,
    /// Print one JSON object (see docs/results.md)
    #[arg(long)]
    json: bool,
}

fn parse_mops(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.000_001..=10_000.0).contains(rate));
    rate.ok_or_else(|| "must be millions of requests a second, from 0.000001 to 10000".to_owned())
}

fn parse_counter(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (0.0..=1_000_000.0).contains(rate));
    rate.ok_or_else(|| "must be millions of lines a second, from 0 to 1000000".to_owned())
}

/// Requests shown if no verb is given.
const USUAL: [(Verb, Transport, Source, usize); 8] = [
    (Verb::Send, Transport::Ud, Source::Inline, 32),
    (Verb::Send, Transport::Ud, Source::Header, 4),
    (Verb::Send, Transport::Rc, Source::Memory, 256),
    (Verb::Write, Transport::Uc, Source::Inline, 28),
    (Verb::Write, Transport::Uc, Source::Inline, 32),
    (Verb::Write, Transport::Rc, Source::Memory, 256),
    (Verb::Read, Transport::Rc, Source::Memory, 32),
    (Verb::FetchAdd, Transport::Rc, Source::Memory, 8),
];

/// Computes, and prints the result.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let nic = args.request.nic()?;
    if args.request.verb.is_none() && !args.json {
        return overview(args, &nic);
    }
    let requests = args.request.requests(&nic)?;
    let figures = Counted::all(args, &nic, &requests);
    if args.json {
        let setup = setup(args, &nic, &requests);
        output::print(figure::list(figures.iter().map(|counted| counted.figure(&setup).to_json())))?;
        return Ok(());
    }
    let (requester, responder) = both(&nic, &requests);
    let title =
        format!("{}: {}, {} M/s", request::text(&requests), request::batch_text(&requests), units::figure(args.rate));
    let title = units::wrapped(&title, usize::from(table::WIDTH), 2);
    let head = format!("{}\n\n{title}", pcie::head(&nic));
    let mut rows = Vec::new();
    for (side, each) in [("at the requester", requester), ("at the responder", responder)] {
        rows.push(vec![side.to_owned()]);
        rows.extend(rows_of(each, args.rate));
    }
    let table = table::of(&["what", "a request", "M/s"], rows, table::FIGURES);
    let rest: Vec<String> = figures.iter().filter_map(Counted::sentence).collect();
    let rest = if rest.is_empty() { String::new() } else { format!("\n\n{}", rest.join("\n")) };
    output::print(format!("{head}\n\n{table}{rest}"))?;
    Ok(())
}

/// Traffic of each request over the links of requester and responder.
fn both(nic: &Profile, requests: &Requests) -> (Rates, Rates) {
    let each = |sum: sinew_sim::nic::Crossings| sum.per_request(requests.count);
    (each(requests.at_requester(nic).sum()), each(requests.at_responder(nic).sum()))
}

fn rows_of(each: Rates, rate: f64) -> Vec<Vec<String>> {
    let second = each * rate;
    let row =
        |what: &str, each: f64, second: f64| vec![format!("  {what}"), units::figure(each), units::figure(second)];
    vec![
        row("writes by MMIO", each.mmio_writes, second.mmio_writes),
        row("DMA reads", each.dma_reads, second.dma_reads),
        row("  lines of them (PCIeRdCur)", each.lines_read, second.lines_read),
        row("DMA writes", each.dma_writes, second.dma_writes),
        row("  lines of them (PCIeItoM)", each.lines_written, second.lines_written),
        row("bytes to the NIC", each.bytes_to_nic, second.bytes_to_nic),
        row("bytes to the host", each.bytes_to_host, second.bytes_to_host),
    ]
}

/// Prints the counters for requests of all kinds.
fn overview(args: &Args, nic: &Profile) -> anyhow::Result<()> {
    if args.request.has_more() {
        return Err(Usage("options of a request need --verb, as in --verb send --batch 16".to_owned()).into());
    }
    let rows = USUAL.into_iter().map(|(verb, transport, source, len)| {
        let brings = matches!(verb, Verb::Read | Verb::FetchAdd);
        let requests = Requests {
            verb,
            transport,
            len,
            source,
            post: Post::Mmio,
            count: 1,
            signaled: usize::from(brings),
            inline_receive: false,
            place: 0,
        };
        let (requester, responder) = both(nic, &requests);
        let lines = [requester, responder].map(|each| each * args.rate).map(|it| [it.lines_read, it.lines_written]);
        let figures = lines.into_iter().flatten().map(units::figure);
        std::iter::once(request::text(&requests)).chain(figures).collect()
    });
    let heads = ["request", "requester PCIeRdCur", "PCIeItoM", "responder PCIeRdCur", "PCIeItoM"];
    let text = format!(
        "Millions of lines a second at {} M requests/s, each posted alone by WQE-by-MMIO, unsignaled except for READs and atomics, when no cache misses. \
         A receive is read by itself.",
        units::figure(args.rate)
    );
    let text = units::wrapped(&text, usize::from(table::WIDTH), 0);
    output::print(format!("{}\n\n{}\n\n{text}", pcie::head(nic), table::of(&heads, rows, table::FIGURES)))?;
    Ok(())
}

/// A counter at one end of the requests.
struct Counted {
    side: &'static str,
    counter: &'static str,
    each: f64,
    expected: f64,
    rate: f64,
    counted: Option<f64>,
}

impl Counted {
    fn all(args: &Args, nic: &Profile, requests: &Requests) -> Vec<Self> {
        let (requester, responder) = both(nic, requests);
        let mut all = Vec::new();
        for (end, side, each) in [(End::Requester, "requester", requester), (End::Responder, "responder", responder)] {
            let second = each * args.rate;
            for (counter, each, expected, counted) in [
                ("PCIeRdCur", each.lines_read, second.lines_read, args.counted_reads),
                ("PCIeItoM", each.lines_written, second.lines_written, args.counted_writes),
            ] {
                let counted = counted.filter(|_| args.at == end);
                all.push(Self { side, counter, each, expected, rate: args.rate, counted });
            }
        }
        all
    }

    /// Lines of a request that were counted beyond those expected.
    fn missed(&self) -> Option<f64> {
        self.counted.map(|counted| (counted - self.expected) / self.rate)
    }

    fn sentence(&self) -> Option<String> {
        let (counted, missed) = (self.counted?, self.missed()?);
        let Self { side, counter, expected, .. } = self;
        let figure = units::figure;
        let means = match missed {
            missed if missed > 0.0 => format!("{} more a request, from misses of the NIC's caches", figure(missed)),
            0.0 => "no more than expected: the NIC's caches miss nothing".to_owned(),
            _ => "fewer than expected: the rate, the options or the counter do not match".to_owned(),
        };
        let text = format!(
            "{counter} at the {side}: {} M/s counted, {} M/s expected; {means}.",
            figure(counted),
            figure(*expected)
        );
        Some(units::wrapped(&text, usize::from(table::WIDTH), 2))
    }

    fn figure(&self, setup: &Value) -> Figure {
        let Self { side, counter, each, expected, counted, .. } = *self;
        let details = json!({
            "name": side,
            "counter": counter,
            "per_request": units::rounded(each),
            "counted": counted,
            "missed_per_request": self.missed().map(units::rounded),
        });
        let title = format!("{counter} at the {side}");
        pcie::result("model verbs", title, Unit::Of("M/s"), expected, setup.clone(), details)
    }
}

fn setup(args: &Args, nic: &Profile, requests: &Requests) -> Value {
    let mut setup = request::setup(nic, requests);
    setup.insert("rate_mops".to_owned(), args.rate.into());
    Value::Object(setup)
}
