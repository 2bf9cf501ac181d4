mod facts;
mod files;
mod model;
mod random;
