//! Tests of verbs over shared memory: between threads of one device, and between devices as used by different
//! processes.

#[path = "verbs/memory.rs"]
mod memory;
#[path = "verbs/messages.rs"]
mod messages;
#[path = "verbs/pair.rs"]
mod pair;
#[path = "verbs/queues.rs"]
mod queues;
#[path = "verbs/states.rs"]
mod states;
