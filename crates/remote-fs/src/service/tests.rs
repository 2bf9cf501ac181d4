mod facts;
mod random;
mod world;
