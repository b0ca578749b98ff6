-- Returns the pieces of an order that was cancelled or has expired.
--
-- KEYS  1 state, 2 taken
-- ARGV  1 customer, 2 quantity
-- Returns 1, or 0 when nothing is loaded

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
redis.call('HINCRBY', KEYS[1], 'left', ARGV[2])
redis.call('HINCRBY', KEYS[2], ARGV[1], -ARGV[2])
return 1
