//! Figures 10 to 12: applications on the paging system and on the file system. No model has a kernel that pages, or
//! FUSE, so these are measured: by `cargo xtask peers`, which needs rights, other programs and minutes. Here stand the
//! paper's values, and the command.

use crate::experiment::{Comparison, Experiment, Row};

/// A figure that is measured by another command.
pub struct Measured {
    id: &'static str,
    title: &'static str,
    source: &'static str,
    setup: &'static str,
    remark: &'static str,
    command: &'static str,
    /// Paper's values: name, case, what is measured, and the greatest gain over the rival, as a ratio.
    gains: &'static [(&'static str, &'static str, &'static str, f64)],
}

/// Figure 10: databases that page.
pub const FIG10: Measured = Measured {
    id: "rdmabox-fig10",
    title: "Databases with half, or a quarter, of their memory local",
    source: "rdmabox VI-A, Figure 10",
    setup: "The paper's MongoDB, VoltDB and Redis under YCSB, with ETC (95 % reads) and SYS (75 %), page to other \
            hosts' memory. Here redis-server does, under the same two mixes, on this machine.",
    remark: "This is not simulated: no model has the kernel's paging. `cargo xtask peers --only paging`, as root in \
             the sources, measures it on this machine: redis with 50 % and 25 % of its memory local, which swaps to \
             our device, to zram, to a file on disk, and to nbdkit's memory, by turns; a place that cannot be had is \
             named with the reason. The paper's rivals, Accelio and plain verbs, are kernel modules for a NIC and not \
             measured.",
    command: "cargo xtask peers --only paging",
    gains: &[
        ("box.bigdata.accelio.mongodb", "over Accelio", "MongoDB, operations", 3.87),
        ("box.bigdata.accelio.voltdb", "over Accelio", "VoltDB, operations", 4.01),
        ("box.bigdata.accelio.redis", "over Accelio", "Redis, operations", 2.73),
        ("box.bigdata.verb.mongodb", "over plain verbs", "MongoDB, operations", 7.52),
        ("box.bigdata.verb.voltdb", "over plain verbs", "VoltDB, operations", 6.6),
        ("box.bigdata.verb.redis", "over plain verbs", "Redis, operations", 4.72),
    ],
};

/// Figure 11: machine learning that pages.
pub const FIG11: Measured = Measured {
    id: "rdmabox-fig11",
    title: "Computations with half, or a quarter, of their memory local",
    source: "rdmabox VI-A, Figure 11",
    setup: "The paper trains four models that page to other hosts' memory. Here a sort that is larger than its memory \
            does, on this machine.",
    remark: "This is not simulated: no model has the kernel's paging. `cargo xtask peers --only paging`, as root in \
             the sources, measures it on this machine: a sort with 50 % and 25 % of its memory local, which swaps to \
             our device, to zram, to a file on disk, and to nbdkit's memory, by turns; a place that cannot be had is \
             named with the reason. The paper's rivals, Accelio and plain verbs, are kernel modules for a NIC and not \
             measured.",
    command: "cargo xtask peers --only paging",
    gains: &[
        ("box.ml.accelio.logistic", "over Accelio", "logistic regression, time", 2.83),
        ("box.ml.accelio.boosting", "over Accelio", "gradient boosting, time", 1.5),
        ("box.ml.accelio.kmeans", "over Accelio", "k-means, time", 1.8),
        ("box.ml.accelio.textrank", "over Accelio", "TextRank, time", 4.62),
        ("box.ml.verb.logistic", "over plain verbs", "logistic regression, time", 3.69),
        ("box.ml.verb.boosting", "over plain verbs", "gradient boosting, time", 1.53),
        ("box.ml.verb.kmeans", "over plain verbs", "k-means, time", 2.62),
        ("box.ml.verb.textrank", "over plain verbs", "TextRank, time", 6.44),
    ],
};

/// Figure 12: the file system.
pub const FIG12: Measured = Measured {
    id: "rdmabox-fig12",
    title: "A file system's throughput over record sizes",
    source: "rdmabox VI-B, Figure 12",
    setup: "The paper's IOzone reads and writes a file of a FUSE file system whose memory lies at another host. Here \
            one file of a mount is, in records of 4 KB to 1 MB, past the kernel's cache, on this machine.",
    remark: "This is not simulated: no model has the kernel's FUSE. `cargo xtask peers --only files`, in the sources, \
             measures it on this machine: a mount of ours beside this host's own memory (tmpfs), the same memory \
             behind a FUSE file system that passes everything on, and nbdkit's memory as a file of nbdfuse, by turns; \
             one that is not installed is named. The paper's rivals need a NIC and are not measured.",
    command: "cargo xtask peers --only files",
    gains: &[
        ("box.fs.write.verb", "write", "over plain verbs", 2.8),
        ("box.fs.write.ucx", "write", "over UCX", 3.1),
        ("box.fs.write.libfabric", "write", "over libfabric", 3.7),
        ("box.fs.write.gluster", "write", "over GlusterFS", 2.2),
        ("box.fs.read.verb", "read", "over plain verbs", 4.8),
        ("box.fs.read.ucx", "read", "over UCX", 5.6),
        ("box.fs.read.libfabric", "read", "over libfabric", 5.9),
        ("box.fs.read.gluster", "read", "over GlusterFS", 2.6),
    ],
};

impl Experiment for Measured {
    fn id(&self) -> &'static str {
        self.id
    }

    fn title(&self) -> &'static str {
        self.title
    }

    fn source(&self) -> &'static str {
        self.source
    }

    fn setup(&self) -> &'static str {
        self.setup
    }

    fn remark(&self) -> &'static str {
        self.remark
    }

    fn measured_by(&self) -> Option<&'static str> {
        Some(self.command)
    }

    fn run(&self, progress: &mut dyn FnMut(f64)) -> Vec<Row> {
        progress(1.0);
        let row = |(id, case, metric, paper): &(&str, &str, &str, f64)| {
            let row = Row::open(*id, format!("{metric}: greatest gain"), "x").case(*case);
            row.paper(self.source, *paper, Comparison::Other("of another rival"))
        };
        self.gains.iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::EXPERIMENTS;

    #[test]
    fn what_another_command_measures_says_so_and_has_no_value_of_its_own() {
        let elsewhere: Vec<_> = EXPERIMENTS.iter().filter(|it| it.measured_by().is_some()).collect();
        let ids: Vec<_> = elsewhere.iter().map(|it| it.id()).collect();
        assert_eq!(ids, ["rdmabox-fig10", "rdmabox-fig11", "rdmabox-fig12"]);
        for experiment in elsewhere {
            let command = experiment.measured_by().unwrap();
            assert!(experiment.remark().contains(command), "{}", experiment.id());
            let rows = experiment.run(&mut |_| {});
            assert!(rows.iter().all(|row| row.found().is_none() && row.paper.is_some() && row.error().is_none()));
        }
    }
}
