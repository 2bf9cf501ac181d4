//! Table I: number of operations that requests become.

use super::paging::{BATCHINGS, Batching, PagingResult, Plan, Workload, run};
use super::profile;
use crate::experiment::{Comparison, Experiment, Row};

/// Experiment for Table I.
pub struct Table1;

/// The table: the batching, millions of READs, and thousands of WRITEs.
const TABLE: [(&str, f64, f64); 6] = [
    ("single_pre", 13.2, 308.0),
    ("merge_pre", 11.5, 272.0),
    ("single_dyn", 13.2, 305.0),
    ("merge_dyn", 11.0, 282.0),
    ("door_dyn", 13.2, 307.0),
    ("hybrid_dyn", 11.0, 280.0),
];

/// Ways to batch whose rows have a shorter name elsewhere.
const KNOWN: [(&str, &str); 3] = [("single_pre", "single"), ("merge_pre", "merged"), ("hybrid_dyn", "hybrid")];

fn find(id: &str) -> Batching {
    BATCHINGS.into_iter().find(|batching| batching.id == id).expect("it is one of them")
}

fn found(batching: Batching) -> PagingResult {
    run(&profile(), &Plan::new(Workload::Etc, batching))
}

impl Experiment for Table1 {
    fn id(&self) -> &'static str {
        "rdmabox-table1"
    }

    fn title(&self) -> &'static str {
        "How many operations requests become"
    }

    fn source(&self) -> &'static str {
        "rdmabox V-A, Table I"
    }

    fn setup(&self) -> &'static str {
        "Eight threads of a host with a modelled ConnectX-3 compute for 20 us on average, read eight missing pages of \
         4 KB, and now and then write out eight blocks of 128 KB: 43 pages for each block, as in Table I. Real engines \
         carry them to a donor's memory. The frequency with which a page or block follows the one before it is \
         calibrated on the column of Merge with preMR; results are scaled to the paper's 13.2 M reads and 308 K \
         writes. preMR copies each request's bytes, which its core is charged for; dynMR registers them, as in the \
         kernel, for which the paper gives no cost: it is charged nothing."
    }

    fn remark(&self) -> &'static str {
        "By the way they work, single and doorbell batching leave all requests. With dynMR as much is merged as with \
         preMR here: requests that one thread submits together are merged, and those are the same. In the paper more \
         reads, and fewer writes, were merged with dynMR."
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        let mut rows = Vec::new();
        for (nth, (id, reads, writes)) in TABLE.into_iter().enumerate() {
            progress(nth as f64 / TABLE.len() as f64);
            let batching = find(id);
            let [of_reads, of_writes] = found(batching).operations();
            // Each batching has the same requests to begin with.
            let against = match id {
                "single_pre" | "single_dyn" | "door_dyn" | "merge_pre" => Comparison::Calibrated,
                _ => Comparison::Same,
            };
            let name = KNOWN.iter().find(|(known, _)| *known == id).map_or(id, |(_, name)| *name);
            let (all_reads, all_writes) = (TABLE[0].1, TABLE[0].2);
            let row = |kind: &str, metric: &str, paper: f64, model: f64, unit| {
                Row::model(format!("box.merge.{kind}.{name}"), metric, model, unit)
                    .paper("Table I", paper, against)
                    .case(batching.name)
            };
            rows.push(row("read", "READs", reads, of_reads * all_reads, "M"));
            rows.push(row("write", "WRITEs", writes, of_writes * all_writes, "K"));
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdmabox::paging::Bytes;

    #[test]
    fn merging_leaves_as_many_operations_as_in_the_table_and_doorbells_leave_all() {
        for id in ["merge_pre", "door_dyn", "hybrid_dyn"] {
            let (batching, (_, reads, writes)) = (find(id), TABLE.into_iter().find(|row| row.0 == id).unwrap());
            let found = found(batching);
            let [of_reads, of_writes] = found.operations();
            // Within a twentieth, for the calibrated column and for those that follow from it.
            assert!((of_reads * 13.2 / reads - 1.0).abs() < 0.05, "{id}: {of_reads} of {reads}");
            assert!((of_writes * 308.0 / writes - 1.0).abs() < 0.05, "{id}: {of_writes} of {writes}");
            // "doorbell batching part in the hybrid does not reduce the RDMA I/O" (Table I).
            assert_eq!(found.stats.merged > 0, batching.mode.merges(), "{id}");
            assert_eq!(found.stats.chained > 0, batching.mode.chains(), "{id}");
            assert!((found.stats.copied > found.stats.reads / 2) == (batching.bytes == Bytes::Copied), "{id}");
        }
    }
}
