-- Creates the state of a room, once.
--
-- KEYS  1 state; ARGV  fields and values
-- Returns 1, or 0 if it exists

if redis.call('HEXISTS', KEYS[1], 'mode') == 1 then
  return 0
end
local clock = redis.call('TIME')
redis.call('HSET', KEYS[1], 'joined', 0, 'serving', 0, 'credit', 0,
  'last', clock[1] * 1000 + math.floor(clock[2] / 1000), unpack(ARGV))
return 1
