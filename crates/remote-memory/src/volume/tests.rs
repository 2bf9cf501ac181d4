mod facts;
mod model;
mod random;
