use sinew_mount::{InMemory, Mount, Options, files::Caller};
use std::path::Path;
#[test]
fn it_mounts() {
    let dir = Path::new("/tmp/mm1");
    std::fs::create_dir_all(dir).unwrap();
    let m = Mount::new(InMemory::new(1 << 34, &Caller::default()), dir, &Options::new("x")).unwrap();
    if let Ok(secs) = std::env::var("HOLD") {
        std::thread::sleep(std::time::Duration::from_secs(secs.parse().unwrap()));
    }
    std::fs::write(dir.join("a"), b"hello").unwrap();
    assert_eq!(std::fs::read(dir.join("a")).unwrap(), b"hello");
    println!("{:?}", m.unmount());
}
