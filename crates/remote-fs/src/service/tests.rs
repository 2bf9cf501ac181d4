mod facts;
mod random;
pub(crate) mod world;
