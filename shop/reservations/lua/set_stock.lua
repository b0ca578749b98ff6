-- Sets the units of the stock row, which opens a filled generation; records the server's run id.
--
-- KEYS  1 state
-- ARGV  1 units, 2 run id
-- Returns the units before, '' if the generation was not open, nil if Redis lost it

if redis.call('EXISTS', KEYS[1]) == 0 then
  return false
end
local before = redis.call('HGET', KEYS[1], 'stock') or ''
redis.call('HSET', KEYS[1], 'stock', ARGV[1], 'run', ARGV[2])
return before
