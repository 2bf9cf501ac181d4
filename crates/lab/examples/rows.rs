//! Prints the rows of the experiments whose names begin with the argument; of all, without one.
fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for experiment in sinew_lab::EXPERIMENTS.iter().filter(|experiment| experiment.id().starts_with(&wanted)) {
        let since = std::time::Instant::now();
        for row in experiment.run(&mut |_| {}) {
            println!(
                "{:28} {:50} {:>8} {:8.2} {} {}",
                row.id,
                row.name(),
                row.paper.map_or(String::new(), |p| p.to_string()),
                row.model.unwrap_or(0.0),
                row.unit,
                sinew_lab::report::standing(&row)
            );
        }
        println!("{} took {:?}", experiment.id(), since.elapsed());
    }
}
