mod classics;
mod durable;
mod hostile;
mod members;
mod world;
