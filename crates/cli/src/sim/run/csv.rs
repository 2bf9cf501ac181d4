//! The time series of a workload, as CSV.

use sinew_lab::workload::Report;

/// A line of column names, and one for each interval. Without congestion control there are no rates.
pub fn of(report: &Report) -> String {
    let series = &report.series;
    let mut columns: Vec<(String, Vec<f64>)> = Vec::new();
    columns.push(("time_ms".to_owned(), series.times_ns.iter().map(|ns| *ns as f64 / 1e6).collect()));
    for (group, values) in report.groups.iter().zip(&series.goodput_gbps) {
        columns.push((format!("goodput_gbps {}", group.name), values.clone()));
    }
    for (queue, values) in report.queues.iter().zip(&series.queues_bytes) {
        columns.push((format!("queue_bytes {}", queue.port), values.iter().map(|bytes| *bytes as f64).collect()));
    }
    for (group, rates) in report.groups.iter().zip(&series.rates_gbps) {
        for (at, what) in ["lowest", "median", "highest"].into_iter().enumerate() {
            let name = format!("rate_gbps {what} {}", group.name);
            columns.push((name, rates.iter().map(|rates| rates[at]).collect()));
        }
    }
    let heads: Vec<String> = columns.iter().map(|(head, _)| quoted(head)).collect();
    let mut text = heads.join(",") + "\n";
    for row in 0..series.times_ns.len() {
        let values: Vec<String> = columns.iter().map(|(_, values)| values[row].to_string()).collect();
        text += &(values.join(",") + "\n");
    }
    text
}

/// Quotes a name, since it may contain separators.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}
