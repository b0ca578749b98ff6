-- Puts the order of a lottery in force, once.
--
-- KEYS  1 state, 2 order
-- ARGV  1 the position of each number, 8 hex digits each
-- Returns 1, or 0 if it was drawn before or the list has another length

local cutoff, drawn, expires = unpack(redis.call('HMGET', KEYS[1], 'cutoff', 'drawn', 'expires'))
if drawn or not cutoff or 8 * cutoff ~= #ARGV[1] then
  return 0
end
redis.call('SET', KEYS[2], ARGV[1])
if expires then
  redis.call('PEXPIREAT', KEYS[2], expires + 7 * 24 * 3600 * 1000)
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], 'drawn', now, 'last', now)
return 1
